"""Free space where a run writes, and how much its next checkpoint needs. Standard library only."""

import os
import shutil
from pathlib import Path


def places(ckpt_path: str | Path, others: list[str | Path]) -> list[dict]:
    """`path`, `free` and `need` in bytes for each file system that a run writes to, by the first path on it.

    `need` is twice the newest checkpoint under `ckpt_path`, since a new one is written before an old one is removed;
    0 elsewhere. Paths that do not exist yet count as their nearest parent.
    """
    found = {}
    for path, need in [(Path(ckpt_path), 2 * checkpoint_bytes(Path(ckpt_path))), *((Path(p), 0) for p in others)]:
        there = next(parent for parent in [path.absolute(), *path.absolute().parents] if parent.exists())
        device = os.stat(there).st_dev
        if device not in found:
            found[device] = {"path": str(there), "free": shutil.disk_usage(there).free, "need": need}
    return list(found.values())


def checkpoint_bytes(ckpt_path: Path) -> int:
    """Bytes of the newest checkpoint: DeepSpeed's under `_actor` and the `_hf` folder together."""
    size = 0
    for pattern in ("_actor/global_step*", "global_step*_hf"):
        folders = sorted(ckpt_path.glob(pattern), key=lambda folder: folder.stat().st_mtime)
        size += sum(file.stat().st_size for file in folders[-1].rglob("*") if file.is_file()) if folders else 0
    return size
