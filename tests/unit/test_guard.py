"""rft.runs.guard: what of a run counts as standing still."""

import os
import signal
import time

import pytest
from sleeping import sleeping

from rft.runs.guard import Still, stat


@pytest.fixture
def run(tmp_path):
    """(run directory, a process of it, a process that stands for its launcher)."""
    with sleeping({"RFT_RUN_DIR": str(tmp_path)}, "VLLM::EngineCore") as pid, sleeping({"A": "launcher"}) as launcher:
        yield tmp_path, pid, launcher


def send(pid: int, number: signal.Signals, state: str) -> None:
    """Signal a process, and wait until the kernel shows its new state."""
    os.kill(pid, number)
    while stat(pid)[0] != state:
        time.sleep(0.01)


def looks(still: Still, run_dir, launcher, count: int) -> list[str]:
    """What several looks say, each five seconds after the one before."""
    messages = []
    for _ in range(count):
        still.looked -= 5
        messages += still.look(run_dir, launcher)
    return messages


def test_a_stopped_process_is_named_once_and_its_going_on_too(run):
    place, pid, launcher = run
    still = Still(600)
    assert looks(still, place, launcher, 20) == []
    send(pid, signal.SIGSTOP, "T")
    assert looks(still, place, launcher, 12) == []  # the first look sees it, sixty seconds are not over
    (message,) = looks(still, place, launcher, 20)
    assert f"found:  engine (VLLM::EngineCore 600), pid {pid} on " in message
    assert f"repair: kill -CONT {pid}; otherwise the run ends in 540 s (STALL_LIMIT=600" in message
    send(pid, signal.SIGCONT, "S")
    assert looks(still, place, launcher, 2) == [f"process {pid} runs again"]
    send(pid, signal.SIGSTOP, "T")
    assert looks(still, place, launcher, 12) == [] and not still.over  # counted anew


@pytest.mark.parametrize(("limit", "ends"), [(600, True), (0, False)])
def test_the_limit_ends_the_run_or_never_does(run, limit, ends):
    place, pid, launcher = run
    still = Still(limit)
    send(pid, signal.SIGSTOP, "T")
    messages = looks(still, place, launcher, 200)
    assert len(messages) == 1 + ends and bool(still.over) == ends
    assert ("the run waits for it (STALL_LIMIT=0)" in messages[0]) != ends


def test_what_a_suspended_launcher_suspends_does_not_count(run):
    """Ctrl-Z stops the launcher and what is in its group."""
    place, pid, launcher = run
    still = Still(600)
    send(pid, signal.SIGSTOP, "T")
    send(launcher, signal.SIGSTOP, "T")
    assert looks(still, place, launcher, 200) == []


def test_a_guard_that_was_suspended_itself_counts_none_of_that_time(run):
    place, pid, launcher = run
    still = Still(600)
    send(pid, signal.SIGSTOP, "T")
    still.look(place, launcher)
    still.looked -= 100_000
    assert still.look(place, launcher) == []
