"""The rules that judge a run, as pure functions over its records. Standard library and `rft.record` only."""
