"""What a run leaves behind: manifest, phases, memory, metrics, summary."""
