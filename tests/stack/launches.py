"""Launches in the background: wait for a moment, kill one of their processes, see how they end."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from direct import Training

from rft.record.environment import stack_name
from rft.runs.memory import marked_processes

ROOT = Path(__file__).resolve().parents[2]
TRAINING = "ray::PolicyModelActor.fit"  # Ray's workers show in their title what they do


def stop_of(run_dir: Path) -> dict:
    return json.loads((run_dir / "run.json").read_text())["stopped"]


def background(command: list[str], output: Path, **variables: str) -> subprocess.Popen:
    """Start a launcher, in the stack that the tests run in."""
    of_the_caller = ("RAY_", "VLLM_", "OMP_", "METRICS_LOG_DIR", "DRY_RUN", "RUN_DIR")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(of_the_caller)}
    environment |= {"RFT_STACK": stack_name()} | variables
    with output.open("wb") as out:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT)


def end(launcher: subprocess.Popen) -> None:
    if launcher.poll() is None:
        launcher.terminate()  # it stops what it started; a SIGKILL would leave it
        launcher.wait(timeout=120)


def marked_process(run_dir: Path, launcher: subprocess.Popen, output: Path, title: bytes) -> int:
    """The id of the run's one process with this in its command line, once a checkpoint is there."""
    deadline = time.monotonic() + 1500
    while not (run_dir / "checkpoints/_actor/latest").exists():
        assert launcher.poll() is None and time.monotonic() < deadline, output.read_text()[-4000:]
        time.sleep(0.05)
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in marked_processes(str(run_dir))}
    (found,) = [pid for pid, command in commands.items() if title in command]
    return found


def server_fell(
    run_dir: Path, launcher: subprocess.Popen, output: Path, title: bytes, name: str, rule: str
) -> tuple[str, float]:
    """Kill the launch's server, once a checkpoint is there; it must end by the server's `name` and `rule`.

    Returns:
        What the launch has printed, and the seconds from the kill to its exit.
    """
    try:
        pid = marked_process(run_dir, launcher, output, title)
        os.kill(pid, signal.SIGKILL)
        begin = time.monotonic()
        assert launcher.wait(timeout=300) == 1, output.read_text()[-4000:]
    finally:
        end(launcher)
    seconds = time.monotonic() - begin
    print(f"{name}: {seconds:.1f} s from the kill to the exit")
    said = output.read_text()
    assert f"error: the run was ended\n  found:  the {name}, process {pid} on " in said, said[-6000:]
    assert (stop_of(run_dir)["rule"], stop_of(run_dir)["exit_status"]) == (rule, 1)
    return said, seconds


def fell(
    run_dir: Path,
    process: subprocess.Popen | Training,
    output: Path,
    *victims: str,
    after: str = ".",
) -> tuple[list[int], str]:
    """Kill one process of each title while the policy trains, once the file `after` is there, and see how the run ends.

    Returns:
        The ids of the killed processes, and the last 15 lines of the training's log.
    """
    pids = wait_for(run_dir, process, output, TRAINING, *victims, after=after)[1:]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    begin = time.monotonic()
    code = process.wait(timeout=300)
    seconds = time.monotonic() - begin
    print(f"{', '.join(victims)}: {seconds:.1f} s from the kill to the exit")
    assert code == 1
    assert marked_processes(str(run_dir)) == []
    log = run_dir / "train.log"
    return pids, tail((log if log.exists() else output).read_text())


def wait_for(
    run_dir: Path, process: subprocess.Popen | Training, output: Path, *prefixes: str, after: str = "."
) -> list[int]:
    """For each title the last process of the run that bears it, once all are there, and the file `after`."""
    deadline = time.monotonic() + 1500
    while not ((run_dir / after).exists() and (pids := processes(run_dir, prefixes))):
        assert process.poll() is None and time.monotonic() < deadline, output.read_text()[-4000:]
        time.sleep(0.05)
    return pids


def processes(run_dir: Path, prefixes: tuple[str, ...]) -> list[int]:
    """For each title the last process of the run that bears it; none if one is missing."""
    titles = {}
    for pid in sorted(marked_processes(str(run_dir))):
        try:
            titles[pid] = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:  # it ended meanwhile
            continue
    found = [[pid for pid, title in titles.items() if title.startswith(prefix)] for prefix in prefixes]
    return [pids[-1] for pids in found] if all(found) else []


def tail(text: str) -> str:
    return "\n".join(text.splitlines()[-15:])
