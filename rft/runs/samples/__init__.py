"""What the policy wrote, in a terminal: `.venv/bin/python -m rft.runs.samples RUN`."""
