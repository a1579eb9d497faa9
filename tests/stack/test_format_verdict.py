"""The format check on a real engine: an untrained model, which boxes nothing, and what a cache saves."""

import json

import pytest
from ranks import run_module

from rft.problems import problem_row

pytestmark = pytest.mark.stack


def test_a_model_that_boxes_nothing_is_sent_to_sft(checkpoint, tmp_path):
    data, out = tmp_path / "problems.jsonl", tmp_path / "found.json"
    rows = [problem_row(f"{n} + 1 =", str(n + 1), f"p{n}", "sums") for n in range(24)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--model", checkpoint, "--data", data, "--max-tokens", 24, "--max-prompt-tokens", 128]
    options += ["--cache", tmp_path / "cache"]
    done = run_module("rft.runs.format_check", *options, "--output", out)
    assert done.returncode == 1, done.stdout[-3000:]
    assert "verdict: SFT first: at most 16.1% of the answers have their box, 95% are wanted" in done.stdout
    found = json.loads(out.read_text())
    assert found["n"] == 20 == len(found["records"]) and found["rates"]["boxed"]["count"] == 0
    assert "Reasoning: medium" in found["first_prompt"]
    assert found["rates"]["final"]["count"] < 20 and found["max_tokens"] == 24
    drawn = sum(len(file.read_text().splitlines()) - 1 for file in (tmp_path / "cache").glob("*.jsonl"))
    assert drawn == 20
    again = run_module("rft.runs.format_check", *options, "--json")  # from the cache
    assert again.returncode == 1 and json.loads(again.stdout[again.stdout.index("{\n") :])["rates"] == found["rates"]
