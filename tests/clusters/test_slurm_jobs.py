"""launch/slurm.sh on a real Slurm of three nodes, with a launcher that trains nothing."""

import re
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture
def job(slurm, tmp_path_factory):
    """Submit the toy launcher; (run directory, job id). The job is gone behind the test."""
    submitted = []

    def submit(*options: str, **environment: str) -> tuple[Path, str]:
        run = slurm.work / f"run{len(list(slurm.work.glob('run*')))}"
        done = slurm_sh(slurm, "submit", HERE / "toy.env", HERE / "toy_launcher.sh", *options, run=run, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        submitted.append(run)
        return run, re.search(r"^job (\d+);", done.stdout, re.MULTILINE)[1]

    yield submit
    for run in submitted:
        slurm_sh(slurm, "cancel", run, "--now")
        for job in jobs_of(run):
            slurm.wait_for_job(job)


def slurm_sh(slurm, *words, run=None, **environment):
    environment = {"SEED": "7"} | environment | ({"RUN_DIR": str(run)} if run else {})
    return slurm.run("bash", ROOT / "launch/slurm.sh", *words, **environment)


def jobs_of(run: Path) -> list[str]:
    rows = [line.split() for line in (run / "slurm/jobs.log").read_text().splitlines()]
    return [row[1] for row in rows if row[2] == "submitted"] + [row[3] for row in rows if row[2] == "submits"]


def trained(run: Path, job: str, least: int) -> None:
    """Wait until the run has taken that many steps."""
    deadline = time.monotonic() + 60
    while steps(run) < least:
        assert time.monotonic() < deadline and " ends with status " not in said(run, job), said(run, job)
        time.sleep(0.1)


def said(run: Path, job: str) -> str:
    log = run / f"slurm/{job}.log"
    return log.read_text() if log.exists() else ""


def steps(run: Path) -> int:
    file = run / "steps"
    return int(file.read_text() or 0) if file.exists() else 0


def test_a_job_runs_its_launcher_to_the_end(slurm, job):
    run, number = job("--steps", "2")
    assert slurm.wait_for_job(number) == "COMPLETED", said(run, number)
    assert "launched on n1 with SEED=7 RAY_ADDRESS= RETRIEVER_URL=" in said(run, number)
    shown = slurm_sh(slurm, "status", run)
    assert "ended 0 the run is complete" in shown.stdout and "began n1" in shown.stdout, shown
    assert "launched on n1" in slurm_sh(slurm, "logs", run).stdout
    refused = slurm_sh(slurm, "resume", run)
    assert refused.returncode == 1 and "error: the run has ended" in refused.stderr


def test_a_failure_keeps_its_status_and_has_no_successor(slurm, job):
    run, number = job("--fail", "3")
    assert slurm.wait_for_job(number) == "FAILED"
    assert "ExitCode=3:0" in slurm.asked("scontrol", "show", "job", number)
    assert jobs_of(run) == [number]
    shown = slurm_sh(slurm, "status", run).stdout
    assert "ended 3 failed" in shown and f"to go on: bash launch/slurm.sh resume {run}" in shown


def test_a_chain_of_two_jobs_finishes_one_run(slurm, job):
    run, number = job("--steps", "8")
    trained(run, number, 2)
    slurm.asked("scancel", "--batch", "--signal=USR1", number)  # as --signal=B:USR1@600 does
    assert slurm.wait_for_job(number) == "FAILED" and "ExitCode=11:0" in slurm.asked("scontrol", "show", "job", number)
    first, second = jobs_of(run)
    assert slurm.wait_for_job(second) == "COMPLETED", said(run, second)
    saved = int(re.search(r"saved after (\d+) steps", said(run, first))[1])
    assert 2 <= saved < 8 and steps(run) == 8
    assert "launch/resume.sh" in said(run, second) and "SEED=7" in said(run, second)
    assert jobs_of(run) == [first, second]


def test_a_chain_ends_at_its_limit(slurm, job):
    run, number = job("--steps", "500", MAX_JOB_CHAINS="1")
    trained(run, number, 1)
    slurm.asked("scancel", "--batch", "--signal=USR1", number)
    assert slurm.wait_for_job(number) == "FAILED"
    assert jobs_of(run) == [number]
    assert f"bash launch/slurm.sh resume {run}" in said(run, number)


def test_a_run_that_ends_by_itself_takes_its_successor_back(slurm, job):
    """Asked to save, but done before it has: nothing is left to go on with."""
    run, number = job("--steps", "4", "--late")
    trained(run, number, 1)
    slurm.asked("scancel", "--batch", "--signal=USR1", number)
    assert slurm.wait_for_job(number) == "COMPLETED", said(run, number)
    _, second = jobs_of(run)
    assert slurm.wait_for_job(second) == "CANCELLED"


def test_cancel_saves_and_resume_goes_on(slurm, job):
    run, number = job("--steps", "6")
    trained(run, number, 1)
    assert "saves and ends" in slurm_sh(slurm, "cancel", run).stdout
    assert slurm.wait_for_job(number) == "FAILED"
    assert jobs_of(run) == [number] and "saved after" in said(run, number)
    refused = slurm_sh(slurm, "cancel", run)
    assert refused.returncode == 1 and "error: nothing to cancel" in refused.stderr
    assert slurm_sh(slurm, "resume", run).returncode == 0
    _, second = jobs_of(run)
    assert slurm.wait_for_job(second) == "COMPLETED" and steps(run) == 6


def test_scancel_ends_a_run_that_resume_goes_on_with(slurm, job):
    run, number = job("--steps", "6")
    trained(run, number, 1)
    refused = slurm_sh(slurm, "resume", run)
    assert refused.returncode == 1 and "error: the run has a job" in refused.stderr
    slurm.asked("scancel", number)
    assert slurm.wait_for_job(number) == "CANCELLED"
    assert jobs_of(run) == [number]
    assert slurm_sh(slurm, "resume", run).returncode == 0
    assert slurm.wait_for_job(jobs_of(run)[1]) == "COMPLETED" and steps(run) == 6
