"""The job script of a run, with stand-ins for Slurm's commands: what signals do to it, and to the job that follows."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from toy_checkout import script

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def slurm(tmp_path):
    """PATH with a Slurm of one node that takes jobs 1, 2, …, runs none, and notes what it is asked."""
    place = tmp_path / "bin"
    script(
        place,
        "sbatch",
        f'echo "sbatch $*" >>{tmp_path}/asked; [[ ! -e {tmp_path}/closed ]] && grep -c sbatch {tmp_path}/asked',
    )
    script(place, "scancel", f'echo "scancel $*" >>{tmp_path}/asked')
    script(place, "squeue", "exit 1")
    script(place, "sacct", "exit 1")
    script(place, "scontrol", f'[[ ! -e {tmp_path}/signalled ]] || kill -USR1 "$(<{tmp_path}/pid)"; echo localhost')
    return f"{place}:{os.environ['PATH']}"


@pytest.fixture
def slurm_sh(slurm, tmp_path):
    def call(*words):
        environment = {"PATH": slurm, "HOME": str(tmp_path), "RFT_STACK": "cpu", "RUN_DIR": str(tmp_path / "run")}
        words = ["bash", ROOT / "launch/slurm.sh", *words]
        return subprocess.run(words, env=environment, capture_output=True, text=True)

    return call


@pytest.fixture
def submit(slurm_sh, tmp_path):
    """Submit a launcher with that body as job 1, asked to save so many seconds before its limit."""

    def call(body, seconds=600):
        (tmp_path / "mine.env").write_text(f"SBATCH_TIMELIMIT=1:00:00 STOP_SECONDS={seconds}\n")
        (tmp_path / "launcher.sh").write_text(f"touch {tmp_path}/launched\n{body}\n")
        return slurm_sh("submit", tmp_path / "mine.env", tmp_path / "launcher.sh")

    return call


@pytest.fixture
def job(submit, slurm, tmp_path):
    """Submit a launcher and start its script, whose time ends so many seconds after it is asked to save."""
    started = []

    def begin(body, seconds=600):
        done = submit(body, seconds)
        assert done.returncode == 0, done.stderr
        environment = {"PATH": slurm, "HOME": str(tmp_path), "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "localhost"}
        command = f"echo $$ >{tmp_path}/pid; exec bash {tmp_path}/run/slurm/job.sh"
        with open(tmp_path / "log", "w") as log:
            started.append(subprocess.Popen(["bash", "-c", command], env=environment, stdout=log, stderr=log))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def soon(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ended(process, tmp_path, *signals, launched=True):
    """Its status, after those signals, each once the one before was handled; and what it asked of Slurm."""
    soon((tmp_path / "launched").exists if launched else lambda: process.poll() is not None)
    for number, word in signals:
        process.send_signal(number)
        soon(lambda word=word: word in (tmp_path / "log").read_text())
    return process.wait(60), (tmp_path / "asked").read_text().splitlines()[1:]


LIMIT, END = (signal.SIGUSR1, "job 2 goes on with this run"), (signal.SIGTERM, "ended by Slurm")
NEXT = "sbatch --parsable --dependency=afterany:1 {}/run/slurm/job.sh"


def test_asked_before_the_launcher_has_started_the_next_job_goes_on(job, tmp_path):
    (tmp_path / "signalled").touch()
    status, asked = ended(job("exit 0"), tmp_path, launched=False)
    assert status == 11 and asked == [NEXT.format(tmp_path)], (tmp_path / "log").read_text()
    assert not (tmp_path / "launched").exists()


def test_a_launcher_that_the_signal_ends_before_it_can_trap_it_is_unfinished(job, tmp_path):
    status, asked = ended(job("exec sleep 60"), tmp_path, LIMIT)
    assert status == 11 and asked == [NEXT.format(tmp_path)], (tmp_path / "log").read_text()


@pytest.mark.parametrize(("seconds", "follows"), [(5, True), (600, False)], ids=["the limit", "scancel"])
def test_saving_takes_too_long(job, slurm_sh, tmp_path, seconds, follows):
    """What the limit ends, the next job goes on with; what scancel ends, none does."""
    process = job("trap '' USR1; trap 'exit 143' TERM; while :; do sleep 0.1; done", seconds)
    status, asked = ended(process, tmp_path, LIMIT, END)
    assert status == 143 and asked == [NEXT.format(tmp_path), *([] if follows else ["scancel 2"])]
    log = (tmp_path / "run/slurm/jobs.log").read_text()
    assert ("the time limit came before it had saved" in log) == follows
    shown = slurm_sh("status", tmp_path / "run").stdout
    assert ("job 2" in shown) == follows and "to go on: bash launch/slurm.sh resume" in shown


def test_a_job_that_was_taken_back_is_not_the_runs_last(job, slurm_sh, tmp_path):
    status, _ = ended(job("trap 'exit 0' USR1; while :; do sleep 0.1; done"), tmp_path, LIMIT)
    assert status == 0
    assert "the run is complete" in slurm_sh("status", tmp_path / "run").stdout
    refused = slurm_sh("resume", tmp_path / "run")
    assert refused.returncode == 1 and "error: the run has ended" in refused.stderr


def test_a_refused_submission_can_be_corrected(submit, tmp_path):
    (tmp_path / "closed").touch()
    assert "error: Slurm refuses the job" in submit("exit 0").stderr
    (tmp_path / "closed").unlink()
    assert submit("exit 0").returncode == 0
    assert "error: the run directory is taken" in submit("exit 0").stderr
