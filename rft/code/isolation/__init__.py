"""What keeps a program from the rest of the machine."""
