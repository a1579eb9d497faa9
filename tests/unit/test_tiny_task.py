"""The arithmetic task: disjoint, deterministic, right, readable by OpenRLHF, and clear about bad files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import load_dataset
from hypothesis import given
from hypothesis import strategies as st

from rft.grading import grade
from rft.tiny.task import (
    DISTINCT,
    SIZES,
    STYLES,
    make_splits,
    operands,
    problem_key,
    read_split,
    require_disjoint,
    worked_answer,
    write_splits,
)

ROOT = Path(__file__).parents[2]
SMALL = {"warm": 60, "train": 40, "heldout": 30}


@pytest.fixture(scope="module")
def splits():
    return make_splits()


def test_default_sets_share_no_problem(splits):
    assert {name: len(problems) for name, problems in splits.items()} == SIZES
    keys = [problem_key(p) for problems in splits.values() for p in problems]
    assert len(set(keys)) == len(keys) == sum(SIZES.values())


def test_labels_and_ids_are_right(splits):
    for problem in (p for problems in splits.values() for p in problems):
        a, b = operands(problem["input"][-1]["content"])
        assert problem["label"] == str(a + b) and problem["id"] == f"chain_sum/{a}+{b}"
        assert 10 <= a <= 99 and 10 <= b <= 99


def test_deterministic_by_seed():
    assert make_splits(7, SMALL) == make_splits(7, SMALL)
    assert make_splits(7, SMALL) != make_splits(8, SMALL)


def test_swapped_terms_are_one_problem(splits):
    problem = splits["train"][0]
    a, b = operands(problem["input"][-1]["content"])
    text = problem["input"][-1]["content"].replace(f"{a} + {b}", f"{b} + {a}")
    twin = {"input": [{"role": "user", "content": text}], "label": problem["label"], "id": "twin"}
    with pytest.raises(ValueError, match=r"in 'train' and in 'other'"):
        require_disjoint({"train": [problem], "other": [twin]})


@pytest.mark.parametrize("sizes", [{"warm": DISTINCT, "train": 1}, {"warm": 0}, {"warm": 5, "train": -1}])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match="at most 4095"):
        make_splits(sizes=sizes)


two_digits = st.integers(10, 99)


@given(two_digits, two_digits)
def test_worked_answers(a, b):
    carry = int(a % 10 + b % 10 > 9)
    for style, added in (("careful", carry), ("careless", 0)):
        analysis, content = worked_answer(a, b, style)
        steps = analysis.split(", ")
        for step in steps:  # both styles add rightly; the careless one adds the wrong carry
            left, result = step.split("=")
            assert sum(map(int, left.split("+"))) == int(result)
        assert len(steps) == 3 and f"+{added}=" in steps[2]
        assert content == f"\\boxed{{{a + b - 10 * (carry - added)}}}"


@given(two_digits, two_digits)
def test_a_careful_answer_earns_the_reward(a, b):
    analysis, content = worked_answer(a, b, "careful")
    final = f"<|start|>assistant<|channel|>final<|message|>{content}<|return|>"
    response = f"<|channel|>analysis<|message|>{analysis}<|end|>{final}"
    assert grade(response, str(a + b)).correct


def test_unknown_style_is_refused():
    with pytest.raises(ValueError, match="found style 'hasty'"):
        worked_answer(1, 2, "hasty")
    assert set(STYLES) == {"careless", "careful"}


@pytest.mark.parametrize("text", ["no sum", "1 + 2 and 3 + 4"])
def test_operands_wants_one_sum(text):
    with pytest.raises(ValueError, match="exactly one sum"):
        operands(text)


def test_files_round_trip_and_are_deterministic(tmp_path):
    splits = make_splits(3, SMALL)
    write_splits(splits, tmp_path / "one")
    write_splits(splits, tmp_path / "two")
    for name in SMALL:
        assert read_split(tmp_path / "one" / f"{name}.jsonl") == splits[name]
        assert (tmp_path / "one" / f"{name}.jsonl").read_bytes() == (tmp_path / "two" / f"{name}.jsonl").read_bytes()
    assert sorted(f.name for f in (tmp_path / "one").iterdir()) == ["heldout.jsonl", "train.jsonl", "warm.jsonl"]


def test_openrlhf_reads_the_file(tmp_path):
    """`blending_datasets` and `preprocess_data` of OpenRLHF 0.9.3, with the flags that the launcher passes."""
    from types import SimpleNamespace

    from openrlhf.datasets.prompts_dataset import preprocess_data
    from openrlhf.datasets.utils import blending_datasets

    from rft.tiny.tokenizer import build_tokenizer

    splits = make_splits(3, SMALL)
    write_splits(splits, tmp_path)
    strategy = SimpleNamespace(print=lambda *_: None, is_rank_0=lambda: False, args=SimpleNamespace(use_ms=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("openrlhf.datasets.utils.load_dataset", lambda *a, **k: load_dataset(*a, cache_dir=tmp_path, **k))
        data = blending_datasets(str(tmp_path / "train.jsonl"), strategy=strategy)
    assert len(data) == SMALL["train"]
    template = build_tokenizer().apply_chat_template
    prompt, label = preprocess_data(data[0], input_key="input", label_key="label", apply_chat_template=template)
    assert prompt == template(splits["train"][0]["input"], tokenize=False, add_generation_prompt=True)
    assert label == splits["train"][0]["label"] and data[0]["datasource"] == "chain_sum"


def test_bad_files_get_one_clear_message(tmp_path):
    path = tmp_path / "warm.jsonl"
    repair = r"data/prepare_arithmetic\.py"
    with pytest.raises(ValueError, match=f"found no file.*{repair}"):
        read_split(path)
    good = make_splits(3, SMALL)["warm"][0]
    for line, message in (
        ("{", f"line 1: not JSON.*{repair}"),
        (json.dumps({**good, "label": 3}), f"field 'label' is 3.*{repair}"),
        (json.dumps({**good, "label": "3"}), f"line 1: found label '3', wanted.*{repair}"),
        (json.dumps({**good, "input": [{"role": "user", "content": "hello"}]}), "exactly one sum"),
    ):
        path.write_text(line + "\n")
        with pytest.raises(ValueError, match=message):
            read_split(path)


def test_command_line(tmp_path):
    command = [sys.executable, "data/prepare_arithmetic.py", "--out", str(tmp_path / "data")]
    small = ["--warm", "5", "--train", "4", "--heldout", "3"]
    done = subprocess.run([*command, *small], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [len(read_split(tmp_path / "data" / f"{n}.jsonl")) for n in ("warm", "train", "heldout")] == [5, 4, 3]
    refused = subprocess.run([*command, "--warm", "5000"], cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode != 0 and "at most 4095" in refused.stderr and "Traceback" not in refused.stderr
