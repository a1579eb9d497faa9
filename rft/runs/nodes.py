"""The nodes of a Ray cluster before a run: are they there, are they alike, and what goes where.

    .venv/bin/python -m rft.runs.nodes wait --address HOST:PORT --gpus N [--seconds S] [--pid PID]
    .venv/bin/python -m rft.runs.nodes check [--input FILE …] [-- COMMAND]        RAY_ADDRESS names the cluster

`wait` only asks the head, and needs no node here. `check` looks on the disk of each node: a node whose patches,
packages, code, driver or inputs are others than this one's is named, exit status 1. With the training's COMMAND it
shows what goes where, and refuses what cannot fit.
"""

import argparse
import os
import socket
import sys
import time
from pathlib import Path

from rft.options.command import gpus_wanted, parse
from rft.overlay import tree_ids
from rft.record.digest import tree_digest
from rft.runs.guard import stat
from rft.runs.manifest import git_state, machine, versions

PERIOD_SECONDS = 0.5
LOOK_SECONDS = 900.0  # a node may have to hash a model of 60 GB
FIT_SECONDS = 20.0  # that long Ray may take to place what fits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    waiting = parts.add_parser("wait", help="until the cluster has as many GPUs")
    waiting.add_argument("--address", required=True, help="of the head: HOST:PORT")
    waiting.add_argument("--gpus", type=int, required=True)
    waiting.add_argument("--seconds", type=float, default=600.0)
    waiting.add_argument(
        "--pid", type=int, help="process of this node's part, without which there is nothing to wait for"
    )
    checking = parts.add_parser("check", help="refuse nodes that differ; show what goes where")
    checking.add_argument(
        "--input", action="append", default=[], type=Path, help="model directory or data file to hash"
    )
    checking.add_argument("command", nargs="*", metavar="-- COMMAND", help="the training command")
    args = parser.parse_args()
    try:
        if args.part == "wait":
            wait(args.address, args.gpus, args.seconds, args.pid)
            return 0
        import ray

        ray.init(log_to_driver=False, logging_level="ERROR")
        return check(args.input) or (placement(args.command) if args.command else 0)
    except (RuntimeError, ConnectionError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def wait(address: str, gpus: int, seconds: float, pid: int | None = None) -> None:
    """Until the head at `address` answers and its nodes have `gpus` GPUs, looked at twice a second.

    Raises:
        RuntimeError: not within `seconds`, or the process `pid` has ended; what is there, by node.
    """
    deadline, nodes, answers = time.monotonic() + seconds, [], False
    while True:
        if reachable(address):
            nodes, answers = table(address), True
            if nodes and sum(int(node["Resources"].get("GPU", 0)) for node in nodes) >= gpus:
                return
        ended = pid is not None and not stat(pid)[0]
        if ended or time.monotonic() > deadline:
            break
        time.sleep(PERIOD_SECONDS)
    there = "; ".join(f"{name(node)}: {int(node['Resources'].get('GPU', 0))} GPUs" for node in nodes)
    found = there or ("a head without a node" if answers else f"nothing that answers at {address}")
    raise RuntimeError(
        f"the cluster is not complete\n  found:  {found}"
        f"{f', and this node has ended (process {pid})' if ended else f', after {seconds:g} s'}\n"
        f"  wanted: {gpus} GPUs in all\n"
        f"  repair: bash launch/node.sh worker {address} on each node, and read what the missing ones print; "
        "RAY_SECONDS=N waits longer"
    )


def reachable(address: str) -> bool:
    """Whether something listens there: Ray itself would try for a minute, and then end this process."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
    except OSError:
        return False
    return True


def table(address: str) -> list[dict]:
    """The living nodes of a cluster, from its head, as `ray.nodes` has them. This process joins nothing."""
    from ray._private.state import GlobalState
    from ray._raylet import GcsClientOptions

    state = GlobalState()
    state._initialize_global_state(
        GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    )
    try:
        return sorted((node for node in state.node_table() if node["Alive"]), key=name)
    finally:
        state.disconnect()


def name(node: dict) -> str:
    """A node in words: host name and address."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def living() -> list[dict]:
    """The nodes of the cluster that this process has joined, in a fixed order, this one's first."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    return sorted(
        (node for node in ray.nodes() if node["Alive"]),
        key=lambda node: (node["NodeID"] != here, node["NodeManagerAddress"]),
    )


def check(inputs: list[Path]) -> int:
    """Print a line a node; 1 and each difference by node where one differs from this one."""
    nodes = living()
    looks = dict(zip(map(name, nodes), look_everywhere(nodes, inputs), strict=True))
    (here, mine), *others = looks.items()
    problems = [f"{node}: {problem}" for node, seen in looks.items() if (problem := seen.get("error"))]
    problems += [
        f"{node}: {what} is {seen.get(what, 'missing')}, {mine.get(what, 'missing')} on {here}"
        for node, seen in others
        if "error" not in seen
        for what in sorted(seen.keys() | mine.keys())
        if seen.get(what) != mine.get(what)
    ]
    for node, seen in looks.items():
        ids = ", ".join(
            f"{what.removeprefix('tree_id ')} {seen[what]}" for what in sorted(seen) if what.startswith("tree_id")
        )
        print(f"node {node}: {ids or 'not seen'}", flush=True)
    if problems:
        print(
            "error: the nodes are not alike\n"
            + "".join(f"  found:  {problem}\n" for problem in problems)
            + "  wanted: the same code, packages, patches, driver and inputs on each\n"
            "  repair: on that node, from the same commit: make setup && bash apply_patches.sh; copy the input",
            file=sys.stderr,
        )
    return 1 if problems else 0


def look_everywhere(nodes: list[dict], inputs: list[Path]) -> list[dict[str, str]]:
    """What `look` sees on each node, all at once; {"error": why} of one that does not answer."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(look)
    paths = [str(path.absolute()) for path in inputs]
    asked = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(paths)
        for node in nodes
    ]
    found = []
    for answer in asked:
        try:
            found.append(ray.get(answer, timeout=LOOK_SECONDS))
        except ray.exceptions.RayError as error:
            found.append({"error": str(error).strip().splitlines()[-1]})
    return found


def look(inputs: list[str]) -> dict[str, str]:
    """What must be equal on all nodes, as it is on the disk of this one."""
    found = {f"tree_id {package}": id_ for package, id_ in tree_ids().items()}
    found |= {f"version of {package}": version for package, version in versions().items()}
    code, here = git_state(), machine()
    found |= {"commit": str(code["commit"]), "uncommitted changes": str(code["diff"])}
    found |= {"Python": here["python"], "GPU driver": str(here["driver"])}
    for path in inputs:
        found[f"sha256 of {path}"] = tree_digest(Path(path))[:16] if os.path.exists(path) else "missing"
    return found


def placement(command: list[str]) -> int:
    """Print which node takes how many ranks and engines, as Ray places them now; 1 where they do not fit."""
    from rft.hooks.places import first_on_drivers_node

    args = parse(command)
    nodes = {node["NodeID"]: node for node in living()}
    shared = args.colocate_all_models and not args.async_train
    wide = args.vllm_tensor_parallel_size
    engines = [(f"engine {i}", wide) for i in range(args.engines)]
    actors = [(f"policy rank {i}{' with an engine' if shared else ''}", 1) for i in range(args.actors)]
    own = args.own_reference and not (shared or args.colocate_actor_ref)
    references = [(f"reference rank {i}", 1) for i in range(own * args.ref_num_nodes * args.ref_num_gpus_per_node)]
    # In the driver's order; only a policy with a claim on the driver's node is placed before the engines.
    pinned = first_on_drivers_node(bundles_of(actors)) != bundles_of(actors)
    separate = [actors, engines, references] if pinned else [engines, actors, references]
    try:
        placed = place([actors] if shared else separate, actors)
    except RuntimeError:
        there = "; ".join(
            f"{name(node)}: {node['Resources'].get('GPU', 0):g} GPUs, {node['Resources'].get('CPU', 0):g} CPUs"
            for node in nodes.values()
        )
        print(
            f"error: the run does not fit into the cluster\n  found:  {there}\n"
            f"  wanted: {gpus_wanted(args)} free GPUs, and a CPU beside each (--num-cpus of a node: NODE_CPUS)\n"
            "  repair: more nodes, or fewer by --actor_num_nodes, --actor_num_gpus_per_node, --vllm_num_engines; "
            "what another run uses is not free",
            file=sys.stderr,
        )
        return 1
    print("placement, as Ray packs it now; nodes with equal room may change places (train.log says how it came):")
    if not pinned and len(nodes) > 1:
        print("warning: this node has no free GPU, so policy rank 0 is on another: the nodes must share the run's disk")
    for node in nodes:
        here = [role for role, where in placed if node in where]
        print(f"node {name(nodes[node])}: {', '.join(here) or 'nothing'}", flush=True)
    split = [role for role, where in placed if len(where) > 1]
    if split:
        print(f"warning: {', '.join(split)} over several nodes: tensor-parallel ranks talk over the network, slowly")
    return 0


def bundles_of(group: list[tuple[str, int]]) -> list[dict[str, float]]:
    """The bundles of a placement group of (role, its GPUs)."""
    return [{"GPU": 1, "CPU": 1} for _ in range(sum(count for _, count in group))]


def place(groups: list[list[tuple[str, int]]], actors: list[tuple[str, int]]) -> list[tuple[str, set[str]]]:
    """(role, ids of the nodes of its GPUs) as Ray packs them now, asked in real placement groups that are given back.

    Args:
        groups: one list a placement group, of (role, its GPUs).
        actors: that of the policy, whose first rank is to be on this node.

    Raises:
        RuntimeError: one of them cannot be placed.
    """
    from ray.util import placement_group, placement_group_table, remove_placement_group

    from rft.hooks.places import first_on_drivers_node

    made, placed = [], []
    try:
        for group in filter(None, groups):
            bundles = bundles_of(group)
            if group is actors:
                bundles = first_on_drivers_node(bundles)
            made.append(placement_group(bundles, strategy="PACK"))
            if not made[-1].wait(FIT_SECONDS):
                raise RuntimeError("no room")
            where = placement_group_table(made[-1])["bundles_to_node_id"]
            taken = 0
            for role, count in group:
                placed.append((role, {where[bundle] for bundle in range(taken, taken + count)}))
                taken += count
    finally:
        for one in made:
            remove_placement_group(one)
    return placed


if __name__ == "__main__":
    sys.exit(main())
