"""One Slurm for all tests of this folder."""

import pytest
import slurm_nodes


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """Three nodes, as slurm_nodes.Cluster."""
    if reason := slurm_nodes.missing():
        pytest.skip(reason)
    cluster = slurm_nodes.Cluster(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.stop()
