"""Real runs of the launcher whose processes are killed in the middle of training: each must end at once and say why."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rft.runs.memory import marked_processes

pytestmark = pytest.mark.stack
ROOT = Path(__file__).resolve().parents[2]
TRAINING = "ray::PolicyModelActor.fit"  # Ray's workers show in their title what they do


def test_a_killed_process_ends_the_run_and_is_named(tmp_path):
    """vLLM's EngineCore is no actor, and idles while the policy trains."""
    pids, last = kill(tmp_path, "VLLM::EngineCore")
    assert "error: EngineCore of vLLM engine 0 died" in last
    assert f"pid {pids[0]} on " in last and "SIGKILL" in last


def test_a_killed_rank_ends_the_run_though_the_other_waits_for_it(tmp_path):
    pids, last = kill(tmp_path, "ray::PolicyModelActor")
    assert "error: policy rank " in last and "(PolicyModelActor) died" in last
    assert f"found:  pid {pids[0]} on " in last


def test_killed_actors_end_the_run_and_leave_no_orphan(tmp_path):
    """The engine's actor cannot end its EngineCore any more, which then belongs to nobody."""
    pids, last = kill(tmp_path, "ray::PPOTrainer", "ray::LLMRayActor")
    assert "trainer (PPOTrainer)" in last and f"pid {pids[0]} on " in last
    assert "vLLM engine 0 (LLMRayActor)" in last and f"pid {pids[1]} on " in last


def kill(place: Path, *victims: str) -> tuple[list[int], str]:
    """Launch a run, kill one process of each title while the policy trains, and check how it ends.

    Returns:
        The ids of the killed processes, and the last 15 lines of the training's log.
    """
    run_dir, output = place / "run", place / "out"
    of_the_caller = ("RAY_", "VLLM_", "OMP_", "METRICS_LOG_DIR", "DRY_RUN")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(of_the_caller)}
    environment |= {"RUN_DIR": str(run_dir), "SEED": "0", "RFT_STACK": "cpu"}
    command = ["bash", "launch/train_grpo_tiny.sh", "--max_samples", "1024", "--actor_num_gpus_per_node", "2"]
    with output.open("wb") as out:
        launcher = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 1500
        while not (pids := training_processes(run_dir, victims)):
            assert launcher.poll() is None and time.monotonic() < deadline, output.read_text()[-4000:]
            time.sleep(0.05)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        start = time.monotonic()
        code = launcher.wait(timeout=300)
        seconds = time.monotonic() - start
    finally:
        if launcher.poll() is None:
            launcher.terminate()  # it stops what it started; a SIGKILL would leave it
            launcher.wait(timeout=120)
    print(f"{', '.join(victims)}: {seconds:.1f} s from the kill to the exit")
    assert code == 1
    assert seconds < 60
    assert marked_processes(str(run_dir)) == []
    assert not (run_dir / "adapter").exists()
    last = tail(run_dir / "train.log")
    error = last[last.index("error: ") :]
    assert error in tail(output), "the terminal shows what the log holds"
    logs = error.split("read the end of ")[1].split(",")[0]
    assert list(Path("/").glob(logs.lstrip("/"))), "the log that the message names must be there"
    return pids, last


def training_processes(run_dir: Path, prefixes: tuple[str, ...]) -> list[int]:
    """For each title the last process that bears it, if the policy trains now, so that the engine idles; else none."""
    titles = {}
    for pid in sorted(marked_processes(str(run_dir))):
        try:
            titles[pid] = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:  # it ended meanwhile
            continue
    found = [[pid for pid, title in titles.items() if title.startswith(prefix)] for prefix in (TRAINING, *prefixes)]
    return [pids[-1] for pids in found[1:]] if all(found) else []


def tail(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-15:])
