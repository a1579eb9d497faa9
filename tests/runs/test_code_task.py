"""The tiny code task through the whole stack: its server is killed in mid-run, which ends by name and is resumed."""

import json

import pytest
from launches import background, end, server_fell

from rft.record.names import TRAINING_FILE
from rft.record.readers import read_jsonl
from rft.runs.memory import marked_processes

pytestmark = pytest.mark.stack
STEPS = 3
LAUNCH = ["bash", "launch/train_grpo_tiny_code.sh", "--max_samples", str(32 * STEPS), "--save_steps", "1"]


def test_a_killed_code_server_ends_the_training_which_goes_on_with_another_one(tmp_path):
    run_dir, output = tmp_path / "run", tmp_path / "out"
    launcher = background(LAUNCH, output, RUN_DIR=str(run_dir), SEED="0")
    _, seconds = server_fell(run_dir, launcher, output, b"\0rft.code_server\0", "code server", "code_server_died")
    assert seconds < 60 and marked_processes(str(run_dir)) == []  # the bound of users, not of this machine
    assert not (run_dir / "adapter").exists()

    launcher = background(["bash", "launch/resume.sh", str(run_dir)], output)
    try:
        assert launcher.wait(timeout=900) == 0, output.read_text()[-4000:]
    finally:
        end(launcher)
    records = read_jsonl(run_dir / TRAINING_FILE)
    assert [record["global_step"] for record in records] == [1, 2, 3]
    assert all(0 < record["correctness"] <= record["pass_rate"] <= 1 for record in records)
    assert records[0].keys() >= {"has_program", "extraction_method", "test_timeout", "compile_error", "unsafe_verdict"}
    result = json.loads((run_dir / "result.json").read_text())
    assert (result["before"]["n"], result["after"]["n"]) == (256, 256)
    before, after = (result[name]["greedy_pass@1"] for name in ("before", "after"))
    assert 0 < before <= 1 and 0 < after <= 1  # three steps: that it learns is README's to show
    for name in ("before", "after"):
        (evaluation,) = json.loads((run_dir / f"evals/{name}.json").read_text())
        assert evaluation["records"][0]["label"].startswith('{"kind"')
    assert marked_processes(str(run_dir)) == []
