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


def titles(run_dir: Path) -> dict[int, str]:
    """Process titles of the run by process id."""
    found = {}
    for pid in marked_processes(str(run_dir)):
        try:
            found[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
        except OSError:  # it ended meanwhile
            continue
    return found


def victim(run_dir: Path, title: str) -> int | None:
    """The last process of that title while the policy trains and the engine idles; None at other times."""
    now = titles(run_dir)
    matching = sorted(pid for pid, name in now.items() if name.startswith(title))
    trains = any(name.startswith(TRAINING) for name in now.values())
    return matching[-1] if trains and matching else None


@pytest.mark.parametrize(
    ("title", "named"),
    [
        ("VLLM::EngineCore", "EngineCore of vLLM engine 0"),
        ("ray::PolicyModelActor", "policy rank "),
        ("ray::PPOTrainer", "trainer (PPOTrainer)"),
        ("ray::LLMRayActor", "vLLM engine 0 (LLMRayActor)"),  # its EngineCore is left without a parent
    ],
    ids=["engine-core", "policy-rank", "trainer", "engine-actor"],
)
def test_a_killed_process_ends_the_run_and_is_named(tmp_path, title, named):
    run_dir = tmp_path / "run"
    of_the_caller = ("RAY_", "VLLM_", "OMP_", "METRICS_LOG_DIR", "DRY_RUN")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(of_the_caller)}
    environment |= {"RUN_DIR": str(run_dir), "SEED": "0", "RFT_STACK": "cpu"}
    command = ["bash", "launch/train_grpo_tiny.sh", "--max_samples", "1024", "--actor_num_gpus_per_node", "2"]
    with (tmp_path / "out").open("wb") as out:
        launcher = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 1500
        pid = None
        while pid is None:
            assert launcher.poll() is None and time.monotonic() < deadline, (tmp_path / "out").read_text()[-4000:]
            time.sleep(0.05)
            pid = victim(run_dir, title)
        os.kill(pid, signal.SIGKILL)
        start = time.monotonic()
        code = launcher.wait(timeout=300)
        seconds = time.monotonic() - start
    finally:
        if launcher.poll() is None:
            launcher.terminate()  # it stops what it started; a SIGKILL would leave it
            launcher.wait(timeout=120)
    print(f"{title}: {seconds:.1f} s from the kill to the exit")
    assert code == 1
    assert seconds < 60
    assert marked_processes(str(run_dir)) == []
    for log in (run_dir / "train.log", tmp_path / "out"):
        last = "\n".join(log.read_text().splitlines()[-15:])
        assert f"error: {named}" in last and f"pid {pid} on " in last, last
    logs = last.split("read the end of ")[1].split(",")[0]
    assert list(Path("/").glob(logs.lstrip("/"))), "the log that the message names must be there"
    assert not (run_dir / "adapter").exists()
