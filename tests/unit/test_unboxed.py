"""The tiny task whose model lacks the format: what its warm start teaches, and its rows to learn from."""

import json
import subprocess
import sys

from rft.tiny import task, unboxed

SIZES = {"warm": 200, "train": 4, "heldout": 4, "sft_train": 100, "sft_dev": 10}


def test_few_answers_of_the_warm_start_are_boxed_and_nothing_says_which():
    problems = task.make_splits(0, {"warm": 1000})["warm"]
    turns = [unboxed.worked_turn(problem, "careful") for problem in problems]
    assert turns == [unboxed.worked_turn(problem, "careful") for problem in problems]
    boxed = sum(final.startswith("\\boxed{") for _, final in turns)
    assert 0.25 < boxed / len(turns) < 0.35  # 0.3, and three standard deviations
    assert {final.removeprefix("\\boxed") for _, final in turns} <= {f"{{{n}}}" for n in range(199)}


def test_the_rows_to_learn_from_are_boxed_in_both_habits():
    splits = unboxed.make_splits(0, SIZES)
    assert {name: len(rows) for name, rows in splits.items()} == SIZES
    right = []
    for row in splits["sft_train"]:
        (turn,) = row["output"]
        assert turn["content"].startswith("\\boxed{") and turn["thinking"]
        right.append(turn["content"] == f"\\boxed{{{row['label']}}}")
    assert 0.5 < sum(right) / len(right) < 0.9  # a third is careful, and half of the rest right by chance


def test_every_process_makes_the_same_rows():
    """Strings hash differently in each."""
    code = f"import json; from rft.tiny import unboxed; print(json.dumps(unboxed.make_splits(0, {SIZES})))"
    made = [
        json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env).stdout)
        for env in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"})
    ]
    assert made[0] == made[1] == unboxed.make_splits(0, SIZES)
