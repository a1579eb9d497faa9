"""A launcher that is asked by a signal to save and stop: it asks the training by a file, and ends with status 11."""

import os
import signal
import subprocess

import pytest
from launching import body, soon

from rft.runs.memory import marked_processes

ASKED = (
    'while [[ ! -s $RFT_RUN_DIR/save_and_stop ]]; do sleep 0.05; done; echo saved for $(<"$RFT_RUN_DIR/save_and_stop")'
)
ENDS = f"echo trains; {ASKED}; exit 11"


@pytest.fixture
def train(tmp_path):
    """Launch a training which is `steps`, in bash; the launcher, once it has said `trains`."""
    started = []

    def start(steps: str, options: str = "", **environment: str) -> subprocess.Popen:
        (tmp_path / "steps.sh").write_text(steps)
        text = f'begin_run {options}; PREPARED=1 COMMAND=(bash "{tmp_path}/steps.sh"); launch_grpo; phase after\n'
        text += "echo after the training; run sleep 300"
        launcher = subprocess.Popen(
            ["bash", body(tmp_path, f'GRPO_ARGS=(--ckpt_path "$CHECKPOINTS"); {text}')],
            env={"PATH": os.environ["PATH"], "RFT_STACK": "cpu", "RUN_DIR": str(tmp_path / "run")} | environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(launcher)
        said = iter(launcher.stdout.readline, "")
        assert any(line == "trains\n" for line in said)
        return launcher

    yield start
    for launcher in started:
        launcher.kill()
        launcher.wait()


def ended(launcher: subprocess.Popen, tmp_path) -> tuple[int, str]:
    out, _ = launcher.communicate(timeout=200)
    assert marked_processes(str(tmp_path / "run")) == []
    return launcher.returncode, out


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_the_training_is_asked_and_the_launch_ends_resumable(train, tmp_path, number):
    launcher = train(ENDS)
    launcher.send_signal(number)
    status, out = ended(launcher, tmp_path)
    assert status == 11 and f"saved for {number.name}\n" in out and "after the training" not in out
    assert f"to go on: bash launch/resume.sh {tmp_path}/run\n" in out
    assert ("SAVE_SECONDS" in out) == (number == signal.SIGTERM)


def test_sigterm_waits_for_so_long_and_no_longer(train, tmp_path):
    launcher = train(f"echo trains; {ASKED}; sleep 300", SAVE_SECONDS="1")
    launcher.send_signal(signal.SIGUSR1)
    assert soon(lambda: (tmp_path / "run/save_and_stop").exists())
    launcher.send_signal(signal.SIGTERM)
    status, out = ended(launcher, tmp_path)
    assert status == 143 and "it has 1 s for that" in out and "interrupted by SIGTERM" in out
    assert "saved for SIGUSR1" in out  # who asked first


def test_asked_a_second_time_it_ends_at_once(train, tmp_path):
    launcher = train("echo trains; sleep 300")
    launcher.send_signal(signal.SIGTERM)
    assert soon(lambda: (tmp_path / "run/save_and_stop").exists())
    launcher.send_signal(signal.SIGTERM)
    assert ended(launcher, tmp_path)[0] == 143


def test_zero_seconds_are_none(train, tmp_path):
    launcher = train("echo trains; sleep 300", SAVE_SECONDS="0")
    launcher.send_signal(signal.SIGTERM)
    assert ended(launcher, tmp_path)[0] == 143 and not (tmp_path / "run/save_and_stop").exists()


def test_a_run_that_keeps_nothing_says_so(train, tmp_path):
    """SIGUSR1 is a question for something that is not there; SIGTERM ends it."""
    launcher = train("echo trains; sleep 300", "--disable_ds_ckpt")
    launcher.send_signal(signal.SIGUSR1)
    said = iter(launcher.stdout.readline, "")
    assert "SIGUSR1: this run keeps nothing to resume from (RESUMABLE=0" in next(said)
    assert "so it goes on" in next(said)
    launcher.send_signal(signal.SIGTERM)
    status, out = ended(launcher, tmp_path)
    assert status == 143 and "SIGTERM: this run keeps nothing to resume from" in out


def test_beside_the_training_there_is_nothing_to_wait_for(train, tmp_path):
    launcher = train("echo trains")
    said = iter(launcher.stdout.readline, "")
    assert any(line == "after the training\n" for line in said)
    launcher.send_signal(signal.SIGUSR1)
    status, out = ended(launcher, tmp_path)
    assert status == 11 and "interrupted by SIGUSR1" in out and "launch/resume.sh" in out


def test_seconds_that_are_no_number_are_refused(tmp_path):
    done = subprocess.run(
        ["bash", body(tmp_path, "echo went on")],
        env={"PATH": os.environ["PATH"], "RFT_STACK": "cpu", "SAVE_SECONDS": "soon"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "found:  SAVE_SECONDS=soon" in done.stderr and "went on" not in done.stdout
