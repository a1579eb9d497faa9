"""Arithmetic from reasoning-gym as chat problems, split into sets that share no problem.

The generator and the question text are reasoning-gym's `chain_sum` (two terms of two digits, + and -); we add one line that
asks for `\\boxed{}`. A worked answer comes in two styles, see `answer`.
"""

import json
import random
import re
from pathlib import Path

from reasoning_gym import create_dataset

INSTRUCTION = "Put the final answer within \\boxed{}."
SIZES = {"warm": 4000, "train": 2000, "heldout": 256}  # problems per split; 12,195 exist
EXPRESSION = re.compile(r"(\d+) ([+-]) (\d+)")


def problem_key(expression: str) -> tuple[str, int, int]:
    """Canonical identity of `a + b` or `a - b`: a sum and its swapped twin are the same problem."""
    match = EXPRESSION.fullmatch(expression)
    if match is None:
        raise ValueError(f"found expression {expression!r}, wanted two numbers joined by + or -")
    a, operator, b = int(match[1]), match[2], int(match[3])
    return (operator, min(a, b), max(a, b)) if operator == "+" else (operator, a, b)
