"""A run that is killed while it saves goes on to the very numbers of one that was not."""

import json
from pathlib import Path

import pytest
from direct import kill, start, train, wait_until
from safetensors.torch import load_file

from rft.hooks.metrics import TRAINING_FILE
from rft.runs.metrics import read_jsonl

pytestmark = pytest.mark.stack
OPTIONS = ("--full_determinism", "--save_steps", "1", "--save_hf_ckpt", "--max_ckpt_num", "2", "--num_episodes", "2")
STEPS = 6  # two episodes, so that the data order of the second must come back too


def comparable(run_dir: Path) -> list[dict]:
    """The metrics of each step, without what a clock decides."""
    records = read_jsonl(run_dir / TRAINING_FILE)
    return [{k: v for k, v in record.items() if not k.endswith("_seconds")} for record in records]


@pytest.fixture(scope="module")
def uninterrupted(checkpoint, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("resume") / "whole"
    train(run_dir, checkpoint, *OPTIONS)
    return run_dir


def test_resumed_metrics_equal_the_uninterrupted_run(checkpoint, uninterrupted, tmp_path):
    run_dir = tmp_path / "killed"
    # The fourth checkpoint, after the first step of the second episode, is being written, and the third in force.
    process = start(run_dir, checkpoint, *OPTIONS)
    wait_until(lambda: (run_dir / "checkpoints" / "_actor" / "global_step4").is_dir(), process, run_dir)
    kill(run_dir, process)
    train(run_dir, checkpoint, *OPTIONS, "--load_checkpoint")

    wanted, found = comparable(uninterrupted), comparable(run_dir)
    assert [record["global_step"] for record in found] == list(range(1, STEPS + 1))
    for expected, record in zip(wanted, found, strict=True):
        names = expected.keys() | record.keys()
        differing = {name: (expected.get(name), record.get(name)) for name in names}
        differing = {name: pair for name, pair in differing.items() if pair[0] != pair[1]}
        assert differing == {}, f"step {expected['global_step']}"
    adapters = [load_file(path / "saved" / "adapter_model.safetensors") for path in (uninterrupted, run_dir)]
    assert all((adapters[0][name] == tensor).all() for name, tensor in adapters[1].items())


def test_checkpoints_hold_the_adapter_and_are_rotated(uninterrupted):
    folder = uninterrupted / "checkpoints"
    assert sorted(path.name for path in folder.glob("global_step*_hf")) == ["global_step5_hf", "global_step6_hf"]
    assert sorted(path.name for path in (folder / "_actor").glob("global_step*")) == ["global_step5", "global_step6"]
    assert (folder / "_actor" / "latest").read_text() == "global_step6"
    config = json.loads((folder / "global_step6_hf" / "adapter_config.json").read_text())
    assert config["r"] == 8
    # Adapter, its fp32 master copy and two moments: 14 bytes for each of its parameters, and little else.
    adapter = sum(
        tensor.numel() for tensor in load_file(folder / "global_step6_hf" / "adapter_model.safetensors").values()
    )
    size = sum(path.stat().st_size for path in (folder / "_actor" / "global_step6").rglob("*") if path.is_file())
    assert size < 14 * adapter + 300_000
