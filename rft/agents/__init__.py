"""Agents of several turns: what is sampled, what the environment writes, and what the trainer gets of both.

`settings`, `actions` and the protocols need the standard library only; `executor` is what `--agent_func_path` loads.
"""
