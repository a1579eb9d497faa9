"""The format check on a real engine: an untrained model, which boxes nothing; a cache of its answers."""

import json
import os
import subprocess
import sys
from pathlib import Path

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
    assert "\nverdict: SFT first: at most 16.1% of the answers have their box, 95% are wanted" in done.stdout
    found = json.loads(out.read_text())
    assert found["n"] == 20 == len(found["records"]) and found["rates"]["boxed"]["count"] == 0
    assert "Reasoning: medium" in found["first_prompt"]
    assert found["rates"]["final"]["count"] < 20 and found["max_tokens"] == 24
    assert drawn(tmp_path / "cache") == 20
    command = [sys.executable, "-m", "rft.runs.format_check", *map(str, options), "--n", "24", "--json"]
    environment = os.environ | {"VLLM_USE_V1": "1"}  # as a shell of a launch has it: the samples are the same
    more = subprocess.run(command, capture_output=True, text=True, env=environment)  # four further problems, only JSON
    assert more.returncode == 1, more.stderr[-3000:]
    assert json.loads(more.stdout)["n"] == 24 == drawn(tmp_path / "cache")


def drawn(cache: Path) -> int:
    """Samples in a cache, each drawn once."""
    (file,) = cache.glob("*.jsonl")
    return len(file.read_text().splitlines()) - 1
