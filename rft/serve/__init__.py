"""Serve what a run has trained over HTTP, with the adapter as it was evaluated."""
