"""launch/slurm.sh on a real Slurm of three nodes, with a launcher that trains nothing."""

import re

from slurm_runs import jobs_of, said, slurm_sh, steps, trained


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
