"""Make the warm-started tiny gpt-oss, or take it from the cache when nothing that decides it has changed.

    .venv/bin/python -m rft.tiny.warmstart --data DIR/warm.jsonl --seed 0 --cache .cache/rft/warmstart --out DIR

A minute on one core, or two to three for the search task; a cached checkpoint is a copy.
"""

import argparse
import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from rft.record.digest import tree_digest
from rft.tiny.tasks import TASKS

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="problems of the warm start (JSONL)")
    parser.add_argument("--task", choices=TASKS, default="sums", help="what the problems are (default: sums)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="checkpoint directory to write")
    args = parser.parse_args()
    try:
        if args.out.exists():
            raise ValueError(f"--out: found {args.out} already; wanted a new folder; remove it or pass another --out")
        cached = warm_started(args.data, args.seed, args.cache, args.task)
        shutil.copytree(cached, args.out)
    except (ValueError, OSError) as error:
        print(f"warmstart: {error}", file=sys.stderr)
        return 2
    print(f"checkpoint: {args.out}")
    return 0


def warm_started(data: Path, seed: int, cache: Path, task: str = "sums") -> Path:
    """Directory of the warm-started checkpoint in `cache`, trained first when it is not there.

    Raises:
        ValueError: the problem file is missing or malformed.
    """
    problems = TASKS[task].read_split(data)
    cache = cache / task  # a lock for each: launches of two tasks do not wait for each other
    place = cache / checkpoint_key(data, seed, task)
    if place.is_dir():
        print(f"warm start: cached ({place.name[:12]})")
        return place
    cache.mkdir(parents=True, exist_ok=True)
    # Two launches at once: the second waits here, and then finds what the first has made.
    lock = os.open(cache, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            _make(problems, seed, cache, place, task)
    finally:
        os.close(lock)
    return place


def _make(problems: list[dict], seed: int, cache: Path, place: Path, task: str) -> None:
    # Only a miss pays for importing torch and transformers.
    import torch

    from rft.tiny.checkpoint import save_checkpoint
    from rft.tiny.supervised import train

    torch.set_num_threads(1)  # threads of so small a model wait for one another: ten times as long on busy cores
    with tempfile.TemporaryDirectory(dir=cache, prefix="partial-") as partial:
        staged = Path(partial) / "checkpoint"
        save_checkpoint(train(problems, seed, task=task), staged, TASKS[task].TEXTS)
        staged.replace(place)


def checkpoint_key(data: Path, seed: int, task: str = "sums") -> str:
    """sha256 over the code, the task, the problems, the seed and the versions that decide the weights."""
    agents = [HERE.parent / "agents" / name for name in ("tags.py", "observations.py")]  # what conversations look like
    code = [*HERE.glob("*.py"), *HERE.glob("*.jinja"), HERE.parent / "mxfp4_codec.py", *agents]
    parts = {
        "code": {path.name: tree_digest(path) for path in code},
        "task": task,
        "problems": tree_digest(data),
        "seed": seed,
        "versions": [importlib.metadata.version(name) for name in ("torch", "transformers")],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
