"""What a run leaves on disk: names, readers, whole files. Standard library only; every other package may import it."""
