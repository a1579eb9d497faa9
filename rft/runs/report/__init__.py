"""A run, or two, on one HTML page: `python -m rft.runs.report RUN [RUN]`."""
