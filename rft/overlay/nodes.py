"""verify --ray: one task per alive node of the running Ray cluster compares what is on that node's disk."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from argparse import Namespace

from .commands import REPOSITORY, examine, expected
from .errors import NOT_WANTED, OK, REFUSED, OverlayError
from .target import find_python, is_running

TIMEOUT_SECONDS = 120


def verify_nodes(arguments: Namespace) -> int:
    """Print node, package, tree_id; exit 1 when a node is not APPLIED or differs from another or from --expect."""
    python = find_python(arguments.python, REPOSITORY)
    if not is_running(python):
        # Ray has to be the target's own; the target has rft, or its nodes could not run the patches anyway.
        command = [python, "-m", "rft.overlay", "verify", "--ray", *arguments.packages, "--python", python]
        command += [f"--expect={item}" for item in arguments.expect] + ["--json"] * arguments.json
        return subprocess.run(command, check=False).returncode
    packages = [i.package for i in examine(python, arguments.patches, arguments.packages).inspections]
    expect = expected(arguments.expect, packages)
    wanted: dict[str, set[str]] = {}
    for package in packages:
        wanted.setdefault(package.import_name, set()).add(expect.get(package.name, package.lock["tree_id"]))
    rows = collect()
    problems = compare(rows, wanted)
    if arguments.json:
        print(json.dumps({"ok": not problems, "nodes": [{"node": n, "tree_ids": ids} for n, ids in rows]}, indent=1))
    else:
        for node, ids in rows:
            print("  ".join([node, *(f"{name} {ids.get(name, 'missing')}" for name in wanted)]))
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return NOT_WANTED if problems else OK


def compare(rows: list[tuple[str, dict[str, str]]], wanted: dict[str, set[str]]) -> list[str]:
    """What is wrong with the nodes' fingerprints. wanted: import name -> tree_ids that are right."""
    problems = []
    for name, ids in wanted.items():
        for node, found in rows:
            if found.get(name) not in ids:
                why = found.get("error") or found.get(name) or "missing"
                problems.append(f"{node}: {name} is {why}, wanted {' or '.join(sorted(ids))}")
        if len({found.get(name) for _, found in rows}) > 1:
            problems.append(f"{name} differs between nodes: bash apply_patches.sh on each, from the same commit")
    return problems


def collect() -> list[tuple[str, dict[str, str]]]:
    """(node name, tree_ids of that node) for every alive node of the running cluster, in a fixed order.

    A node that cannot answer carries {"error": why}. Raises OverlayError: exit 3 without ray, 1 without a cluster.
    """
    try:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
    except ImportError as error:
        raise OverlayError(REFUSED, f"{sys.executable} has no ray", found=str(error)) from error
    mine = not ray.is_initialized()
    try:
        if mine:
            _require_listener(os.environ.get("RAY_ADDRESS", ""))
            ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        task = ray.remote(num_cpus=0, max_retries=0)(_look)
        nodes = sorted((n["NodeManagerAddress"], n["NodeID"]) for n in ray.nodes() if n["Alive"])
        pending = [
            (
                f"{address} {node[:8]}",
                task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)),
            )
            for address, node in nodes
        ]
        references = [(name, options.remote()) for name, options in pending]
        rows = []
        for name, reference in references:
            try:
                rows.append((name, ray.get(reference, timeout=TIMEOUT_SECONDS)))
            except ray.exceptions.RayError as error:
                rows.append((name, {"error": f"ERROR: {str(error).strip().splitlines()[-1]}"}))
        return rows
    except ConnectionError as error:
        raise OverlayError(
            NOT_WANTED,
            "no Ray cluster answers",
            found=str(error).splitlines()[0],
            wanted="a running cluster; RAY_ADDRESS names it",
            repair=".venv/bin/ray start --head",
        ) from error
    finally:
        if mine and ray.is_initialized():
            ray.shutdown()


def _require_listener(address: str) -> None:
    """Raise ConnectionError at once for a host:port that nothing answers: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except OSError as error:
            raise ConnectionError(f"RAY_ADDRESS={address}: {error}") from error


def _look() -> dict[str, str]:
    from rft.overlay import tree_ids

    return tree_ids(sys.executable)
