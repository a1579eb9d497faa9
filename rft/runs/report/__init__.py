"""A run, or two, on one HTML page: `.venv/bin/python -m rft.runs.report RUN [RUN]`."""
