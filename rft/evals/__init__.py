"""Evaluation: prompts, cached samples, probes of what is served, paired comparison, reports.

Importing the package sets the environment that torch and vLLM read while they are imported; values that are set stay.
"""

from rft.record.environment import set_environment

set_environment()
