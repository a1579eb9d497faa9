"""A live page of a run in the terminal: `.venv/bin/python -m rft.runs.monitor RUN`."""
