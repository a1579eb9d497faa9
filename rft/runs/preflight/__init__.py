"""Go or no-go before a training starts: `.venv/bin/python -m rft.runs.preflight`."""
