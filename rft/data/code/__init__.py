"""MBPP, HumanEval and your own code tasks as problem rows with tests for labels (`rft.code.labels`). See docs/data.md."""
