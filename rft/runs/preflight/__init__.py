"""Go or no-go before a training starts: `python -m rft.runs.preflight`."""
