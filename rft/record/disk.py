"""Free space where a run writes, and how much its next checkpoint needs. Standard library only."""

import os
import shutil
from pathlib import Path

MARGIN = 1.1  # a tenth is less than the final weights, for which the preflight wants room as well


def places(ckpt_path: str | Path, others: list[str | Path]) -> list[dict]:
    """`path`, `free` and `need` in bytes for each file system that a run writes to, by the first path on it.

    `need` is the newest checkpoint under `ckpt_path` and a tenth, since a new one is written before an old one is
    removed; 0 elsewhere. Paths that do not exist yet count as their nearest parent.
    """
    found = {}
    next_one = int(MARGIN * checkpoint_bytes(Path(ckpt_path)))
    for path, need in [(Path(ckpt_path), next_one), *((Path(p), 0) for p in others)]:
        there = next(parent for parent in [path.absolute(), *path.absolute().parents] if parent.exists())
        device = os.stat(there).st_dev
        if device not in found:
            found[device] = {"path": str(there), "free": shutil.disk_usage(there).free, "need": need}
    return list(found.values())


def checkpoint_bytes(ckpt_path: Path) -> int:
    """Bytes of the newest checkpoint: DeepSpeed's under `_actor` and the `_hf` folder together.

    What the run removes meanwhile counts as absent.
    """
    return sum(_newest_bytes(ckpt_path, pattern) for pattern in ("_actor/global_step*", "global_step*_hf"))


def _newest_bytes(ckpt_path: Path, pattern: str) -> int:
    folders = [(status.st_mtime, folder) for folder in ckpt_path.glob(pattern) if (status := _stat(folder))]
    if not folders:
        return 0
    files = [Path(place, name) for place, _, names in os.walk(max(folders)[1]) for name in names]
    return sum(status.st_size for file in files if (status := _stat(file)))


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None
