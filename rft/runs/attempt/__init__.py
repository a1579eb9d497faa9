"""Attempts on record: `python -m rft.runs.attempt`."""
