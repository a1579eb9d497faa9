"""The nodes of a run: which there are, what is where, which one is lost, and what must be on the driver's.

The controller writes metrics and samples and reads what the launcher asks it by a file; policy rank 0 writes the
adapter and says which checkpoint is the newest. On a cluster of several nodes both are therefore placed on the driver's
node, which is the launcher's: nodes need not share a disk then. On one node nothing is placed otherwise than upstream
does.
"""

from argparse import Namespace
from typing import TypeVar

import ray
from ray._private import state
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

Actor = TypeVar("Actor")

SILENT_SECONDS = 40.0  # after which the GCS of launch/nodes.sh has given up a machine that does not answer
_shown: list[bool] = []  # once a process


def living_nodes() -> dict[str, str]:
    """Name and address by id of the nodes of the cluster that live now, from the table of the GCS."""
    return {
        node["NodeID"]: f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        for node in ray.nodes()
        if node["Alive"]
    }


def lost(nodes: dict[str, str]) -> list[tuple[str, str]]:
    """(name, why) of those of `nodes` that the GCS holds for dead by now.

    It knows at once of a raylet that ends; of a machine that does not answer any more after 32 s on a cluster of
    launch/nodes.sh.
    """
    return [
        (nodes[node["NodeID"]], node.get("DeathReasonMessage") or "the head has no answer of it any more")
        for node in ray.nodes()
        if not node["Alive"] and node["NodeID"] in nodes
    ]


def show(actors: list[tuple[str, "ray.actor.ActorHandle"]], nodes: dict[str, str]) -> None:
    """Print which actor is on which node, once, as soon as all of them live; nothing where there is one node."""
    if _shown or len(nodes) < 2:
        return
    table = state.actors(job_id=ray.JobID.from_hex(ray.get_runtime_context().get_job_id()))
    rows = {name: table.get(handle._actor_id.hex(), {}) for name, handle in actors}
    if not all(row.get("State") == "ALIVE" for row in rows.values()):
        return
    _shown.append(True)
    for node, named in nodes.items():
        here = [name for name, row in rows.items() if row["Address"]["NodeID"] == node]
        print(f"node {named}: {', '.join(here) or 'nothing of this run'}", flush=True)


def drivers_node() -> dict | None:
    """The driver's node, as `ray.nodes` has it, in a cluster of several; None where there is no other one."""
    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    return nodes[ray.get_runtime_context().get_node_id()] if len(nodes) > 1 else None


def on_drivers_node(actor: Actor) -> Actor:
    """An actor class whose actors are made on the driver's node; the class itself where there is one node.

    They need no free CPU there: the bundles of ranks and engines may have taken all.
    """
    node = drivers_node()
    if node is None:
        return actor
    return actor.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))


def first_on_drivers_node(bundles: list[dict[str, float]]) -> list[dict[str, float]]:
    """The bundles of a placement group, the first of them for the driver's node alone.

    They are as they were where there is one node, and where that node has no GPU to give: a driver on a node without,
    or one beside another run, trains as before, on a disk that the nodes share.
    """
    node = drivers_node()
    if node is None or not has_free_gpu(node):
        return bundles
    # Ray gives each node one of these; a little of it is no claim on anything.
    return [bundles[0] | {f"node:{node['NodeManagerAddress']}": 0.001}, *bundles[1:]]


def has_free_gpu(node: dict) -> bool:
    """Whether a GPU of a node is free now."""
    return state.available_resources_per_node().get(node["NodeID"], {}).get("GPU", 0) >= 1


def actors_group(args: Namespace) -> PlacementGroup | None:
    """The policy's own placement group, made before the engines can take the driver's node; None without such a claim.

    Args:
        args: OpenRLHF's, of actors that share their GPUs with nobody.
    """
    own = [{"GPU": 1, "CPU": 1} for _ in range(args.actor_num_nodes * args.actor_num_gpus_per_node)]
    bundles = first_on_drivers_node(own)
    if bundles is own:
        return None
    group = placement_group(bundles, strategy="PACK")
    ray.get(group.ready())
    return group
