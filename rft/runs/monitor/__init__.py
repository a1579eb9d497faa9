"""A live page of a run in the terminal: `python -m rft.runs.monitor RUN`."""
