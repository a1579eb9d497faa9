"""launch/slurm.sh on a real Slurm: a job that has not saved when its time is up."""

from slurm_runs import jobs_of, said, slurm_sh


def test_what_the_time_limit_ends_the_next_job_goes_on_with(slurm, job):
    run, number = job("--steps", "100000", "--late", SBATCH_TIMELIMIT="1", STOP_SECONDS="30", MAX_JOB_CHAINS="2")
    assert slurm.wait_for_job(number) in ("TIMEOUT", "FAILED"), said(run, number)
    assert "asked to stop" in said(run, number) and "ended by Slurm (SIGTERM)" in said(run, number)
    first, second = jobs_of(run)
    assert first == number and "the time limit came before it had saved" in (run / "slurm/jobs.log").read_text()
    assert "withdraws" not in (run / "slurm/jobs.log").read_text()
    slurm_sh(slurm, "cancel", run, "--now")
    assert slurm.wait_for_job(second) in ("CANCELLED", "FAILED", "COMPLETED")
