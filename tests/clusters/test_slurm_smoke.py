"""launch/slurm.sh smoke on a real Slurm: go, and each no-go with its repair."""

from slurm_runs import HERE, slurm_sh


def smoke(slurm, **environment):
    place = slurm.work / f"smoke{len(list(slurm.work.glob('smoke*')))}"
    return slurm_sh(slurm, "smoke", HERE / "toy.env", run=place, **environment)


def test_a_good_cluster_is_go(slurm):
    found = smoke(slurm, NODES="3", JOB_MODULES="toy/1.2", JOB_PROXY_MODULE="proxy/default")
    assert found.returncode == 0, found.stdout + found.stderr
    page = found.stdout[found.stdout.index("an all-reduce over all of them") :]
    assert page.rstrip().endswith("GO") and "no-go" not in page, page
    for line in ("modules", "GPUs", "patches", "hub", "code server", "retriever"):
        row = next(row for row in page.splitlines() if row.startswith(f"go     {line}"))
        assert row.endswith("[n1 n2 n3]"), row
    assert "gloo over 3 nodes" in page and "toy/1.2 proxy/default" in page


def test_what_is_wrong_is_no_go_with_its_repair(slurm):
    """The proxy answers for another host of the cluster, which the job does not know, as for every one: with 403."""
    found = smoke(slurm, NODES="1", RETRIEVER_URL="http://login:8000", JOB_PROXY_MODULE="proxy/default")
    assert found.returncode == 1, found.stdout + found.stderr
    assert "no-go  retriever" in found.stdout and "status 403" in found.stdout and "NO_PROXY must name" in found.stdout
    assert found.stdout.rstrip().endswith("NO-GO")


def test_an_interface_that_is_not_there_is_named(slurm):
    found = smoke(slurm, NODES="1", JOB_INTERFACE="hsn9")
    assert found.returncode == 1
    assert "error: a node has no address\n  found:  n1, interface hsn9" in found.stdout, found.stdout
