"""One Slurm for all tests of this folder."""

from pathlib import Path

import pytest
import slurm_nodes
from slurm_runs import jobs_of, slurm_sh, submit


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """Three nodes, as slurm_nodes.Cluster."""
    if reason := slurm_nodes.missing():
        pytest.skip(reason)
    cluster = slurm_nodes.Cluster(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.stop()


@pytest.fixture
def job(slurm):
    """Submit the toy launcher, as slurm_runs.submit; the jobs are gone behind the test."""
    submitted = []

    def begin(*options: str, **environment: str) -> tuple[Path, str]:
        submitted.append(submit(slurm, *options, **environment))
        return submitted[-1]

    yield begin
    for run, _ in submitted:
        slurm_sh(slurm, "cancel", run, "--now")
        for number in jobs_of(run):
            slurm.wait_for_job(number)
