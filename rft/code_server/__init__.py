"""The code server: programs of the model against tests, over HTTP (docs/code_rewards.md)."""
