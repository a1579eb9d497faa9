"""What is placed on the driver's node; that Ray does it: tests/patches/test_placement_probes.py, tests/clusters."""

import types

import pytest

pytest.importorskip("ray")
from rft.hooks import places

HERE = {"NodeID": "a", "NodeManagerAddress": "10.0.0.1", "Alive": True}
OTHER = {"NodeID": "b", "NodeManagerAddress": "10.0.0.2", "Alive": True}
ARGS = types.SimpleNamespace(actor_num_nodes=2, actor_num_gpus_per_node=2)


@pytest.fixture
def cluster(monkeypatch):
    """Makes the nodes that Ray knows of, this process on the first, and the GPUs that are free on it."""

    def make(*nodes: dict, free: float = 4.0) -> list:
        groups = []

        def group(bundles, strategy):
            groups.append((bundles, strategy))
            return types.SimpleNamespace(ready=lambda: "ready")

        monkeypatch.setattr(places.ray, "nodes", lambda: list(nodes))
        monkeypatch.setattr(places.ray, "get", lambda ref: ref)
        context = types.SimpleNamespace(get_node_id=lambda: "a")
        monkeypatch.setattr(places.ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(places.state, "available_resources_per_node", lambda: {"a": {"GPU": free, "CPU": 1.0}})
        monkeypatch.setattr(places, "placement_group", group)
        return groups

    return make


class Actor:
    """As a class that Ray makes remote."""

    @classmethod
    def options(cls, **options: object) -> dict:
        return options


@pytest.mark.parametrize("nodes", [(HERE,), (HERE, OTHER | {"Alive": False})])
def test_on_one_node_nothing_is_placed_otherwise(cluster, nodes):
    groups, bundles = cluster(*nodes), [{"GPU": 1, "CPU": 1}] * 2
    assert places.on_drivers_node(Actor) is Actor
    assert places.first_on_drivers_node(bundles) is bundles
    assert places.actors_group(ARGS) is None and groups == []


def test_the_controller_and_rank_0_are_on_the_drivers_node(cluster):
    groups = cluster(OTHER, HERE)
    options = places.on_drivers_node(Actor)
    assert options["num_cpus"] == 0, "its CPUs may be those of ranks and engines"
    assert (options["scheduling_strategy"].node_id, options["scheduling_strategy"].soft) == ("a", False)
    assert places.actors_group(ARGS).ready() == "ready"
    one = {"GPU": 1, "CPU": 1}
    assert groups == [([one | {"node:10.0.0.1": 0.001}, one, one, one], "PACK")]


def test_a_driver_whose_node_has_no_gpu_to_give_claims_none(cluster):
    """Its controller needs none."""
    groups, bundles = cluster(HERE, OTHER, free=0.8), [{"GPU": 1, "CPU": 1}]
    assert places.first_on_drivers_node(bundles) is bundles
    assert places.actors_group(ARGS) is None and groups == []
    assert places.on_drivers_node(Actor) != Actor
