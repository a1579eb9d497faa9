"""Evaluation: prompts, cached samples, probes of what is served, paired comparison, reports."""
