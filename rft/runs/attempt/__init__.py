"""Attempts on record: `.venv/bin/python -m rft.runs.attempt`."""
