"""The tiny code task: distinct functions, tests that tell right from wrong, answers that fit the tiny model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rft.tiny import supervised
from rft.tiny.programs import SIZES, STYLES, TESTS, TEXTS, make_splits, read_split, terms_of, worked_turn
from rft.tiny.task import write_splits
from rft.tiny.tokenizer import build_tokenizer

ROOT = Path(__file__).parents[2]
SMALL = {"warm": 60, "train": 40, "heldout": 30}
TOKENIZER = build_tokenizer(TEXTS)


@pytest.fixture(scope="module")
def splits():
    return make_splits()


def passed(problem: dict, style: str) -> list[bool]:
    """Which tests of a problem an answer of ours passes; it is no program of a model, so it runs here."""
    program, names = worked_turn(problem, style)[1].removeprefix("```python\n").removesuffix("```"), {}
    exec(program, names)
    cases = [test.removeprefix("assert ").split(" == ") for test in json.loads(problem["label"])["tests"]]
    return [eval(call, names) == int(wanted) for call, wanted in cases]


def test_default_sets_share_no_function(splits):
    assert {name: len(problems) for name, problems in splits.items()} == SIZES
    points = [(2, 3, 5), (101, 57, 13), (-7, 19, 1000)]
    functions = set()
    for problem in (problem for problems in splits.values() for problem in problems):
        names = {}
        exec(worked_turn(problem, "careful")[1].strip("`").removeprefix("python"), names)
        functions.add(tuple(names["f"](*point) for point in points))
    assert len(functions) == sum(SIZES.values())


def test_a_careful_answer_passes_and_a_careless_one_where_no_brackets_are_needed(splits):
    for problems in splits.values():
        needed = [worked_turn(problem, "careful") != worked_turn(problem, "careless") for problem in problems]
        assert sum(needed) * 2 == len(problems)
        for problem, brackets in zip(problems, needed, strict=True):
            assert passed(problem, "careful") == [True] * TESTS
            assert passed(problem, "careless") == [not brackets] * TESTS


def test_deterministic_by_seed():
    assert make_splits(7, SMALL) == make_splits(7, SMALL)
    assert make_splits(7, SMALL) != make_splits(8, SMALL)


def test_prompts_have_one_length_and_answers_fit(splits):
    turns = [supervised.conversation(TOKENIZER, p, s, "code") for p in splits["heldout"] for s in STYLES]
    assert len({len(prompt) for prompt, _, _ in turns}) == 1 and len(turns[0][0]) <= 64
    assert max(len(answer) for _, answer, _ in turns) <= 50  # of 64 in launch/models/tiny.env


def test_files_round_trip_through_the_command(tmp_path):
    command = [sys.executable, "data/prepare_arithmetic.py", "--task", "code", "--seed", "3", "--out", str(tmp_path)]
    sizes = [word for name, size in SMALL.items() for word in (f"--{name}", str(size))]
    subprocess.run([*command, *sizes], cwd=ROOT, check=True, capture_output=True)
    assert {name: read_split(tmp_path / f"{name}.jsonl") for name in SMALL} == make_splits(3, SMALL)


@pytest.mark.parametrize("sizes", [{"warm": 4000}, {"warm": 0}, {"warm": 5, "train": -1}])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match="at most 3240"):
        make_splits(sizes=sizes)


@pytest.mark.parametrize("text", ["x plus 47", "Write a Python function f(x, y, z): x over 47 then times y"])
def test_another_text_is_refused(text):
    with pytest.raises(ValueError, match="wanted 'Write a Python function"):
        terms_of(text)


def test_bad_files_get_one_clear_message(tmp_path):
    path, repair = tmp_path / "warm.jsonl", r"prepare_arithmetic\.py --task code"
    with pytest.raises(ValueError, match=f"found no file.*{repair}"):
        read_split(path)
    first, second = make_splits(3, SMALL)["warm"][:2]
    for problem, message in (
        (first | {"label": second["label"]}, f"line 1: found label .*{repair}"),
        (first | {"input": [{"role": "user", "content": "hello"}]}, f"line 1: found 'hello'.*{repair}"),
    ):
        write_splits({"warm": [problem]}, tmp_path)
        with pytest.raises(ValueError, match=message):
            read_split(path)
