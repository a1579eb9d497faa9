"""MBPP, HumanEval and your own code tasks as problems whose labels are tests (`rft.code.labels`). See docs/data.md."""
