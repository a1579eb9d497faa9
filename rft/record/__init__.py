"""What a run leaves on disk: names, readers, complete files. Standard library only; every package may import it."""
