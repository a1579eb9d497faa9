"""A run that is killed while it saves resumes to the very numbers of one that was not."""

import json
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
from compared import comparable, differing
from direct import kill, log_of, signal_all, start, train, wait_until
from safetensors.torch import load_file

from rft.hooks import save_and_stop
from rft.runs.memory import marked_processes

pytestmark = pytest.mark.stack
OPTIONS = ("--full_determinism", "--save_steps", "1", "--save_hf_ckpt", "--max_ckpt_num", "2", "--num_episodes", "2")
STEPS = 6  # two episodes, so that the data order of the second must come back too


@pytest.fixture(scope="module")
def runs(checkpoint, tmp_path_factory):
    """A run to its end, and what a SIGKILL of all its processes would have left of it while it saved."""
    whole, killed = (tmp_path_factory.mktemp("resume") / name for name in ("whole", "killed"))
    process = start(whole, checkpoint, *OPTIONS)
    try:
        # The fourth checkpoint, after the first step of the second episode, is being written: the third is in force.
        wait_until(lambda: (whole / "checkpoints" / "_actor" / "global_step4").is_dir(), process, whole)
        with frozen(whole):
            shutil.copytree(whole, killed)
        assert process.wait(timeout=1200) == 0, log_of(whole)[-6000:]
    finally:
        kill(whole, process)
    return whole, killed


@contextmanager
def frozen(run_dir: Path):
    """No process of the run does anything in the block."""
    processes = marked_processes(str(run_dir))
    signal_all(processes, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_all(processes, signal.SIGCONT)


def test_resumed_metrics_equal_the_uninterrupted_run(checkpoint, runs):
    """Killed once, and then asked to save and stop where no checkpoint was due."""
    uninterrupted, run_dir = runs
    latest = run_dir / "checkpoints" / "_actor" / "latest"
    step = int(latest.read_text().removeprefix("global_step")) + 1
    (run_dir / save_and_stop.FILE).write_text("SIGUSR1\n")
    said = train(run_dir, checkpoint, *OPTIONS, "--load_checkpoint", "--save_steps", "99", status=save_and_stop.STATUS)
    assert f"stopped after step {step}, with a checkpoint of it: SIGUSR1" in said
    assert latest.read_text() == f"global_step{step}" and not (run_dir / "saved").exists()
    (run_dir / save_and_stop.FILE).unlink()
    train(run_dir, checkpoint, *OPTIONS, "--load_checkpoint")

    wanted, found = comparable(uninterrupted), comparable(run_dir)
    assert [record["global_step"] for record in found] == list(range(1, STEPS + 1))
    for expected, record in zip(wanted, found, strict=True):
        assert differing(expected, record) == {}, f"step {expected['global_step']}"
    adapters = [load_file(path / "saved" / "adapter_model.safetensors") for path in (uninterrupted, run_dir)]
    assert all((adapters[0][name] == tensor).all() for name, tensor in adapters[1].items())


def test_checkpoints_hold_the_adapter_and_are_rotated(runs):
    folder = runs[0] / "checkpoints"
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
