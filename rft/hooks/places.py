"""The nodes of a run: which there are, what is where, which one is lost."""

import ray
from ray._private import state

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
