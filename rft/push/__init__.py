"""Publish what a run has trained on the Hugging Face hub, with a model card written from the run."""
