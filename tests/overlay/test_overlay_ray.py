"""verify --ray on a real two-node Ray cluster of this machine."""

from __future__ import annotations

import argparse
import json

import pytest

from rft.overlay import nodes, tree_ids
from rft.overlay.errors import OverlayError

pytestmark = pytest.mark.stack


def test_no_cluster_is_one_message_within_seconds(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(OverlayError) as error:
        nodes.collect()
    assert error.value.code == 1 and "RAY_ADDRESS=127.0.0.1:1" in str(error.value)


@pytest.fixture(scope="module")
def cluster():
    """A head and one more raylet, started and stopped by this test alone."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_every_node_reports_what_is_on_its_disk(cluster):
    rows = nodes.collect()
    assert len({name for name, _ in rows}) == 2
    assert [ids for _, ids in rows] == [tree_ids(), tree_ids()]


def test_expected_id_decides_the_exit_status(cluster, capsys):
    arguments = argparse.Namespace(python=None, patches=None, packages=["openrlhf"], expect=[], json=True)
    applied = ":" not in tree_ids()["openrlhf"] and tree_ids()["openrlhf"] != "CLEAN"
    assert nodes.verify_nodes(arguments) == (0 if applied else 1)
    assert len(json.loads(capsys.readouterr().out)["nodes"]) == 2
    arguments.expect = ["0" * 16]
    assert nodes.verify_nodes(arguments) == 1
    assert "wanted 0000000000000000" in capsys.readouterr().err
