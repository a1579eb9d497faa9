"""The GPUs of this machine, from nvidia-smi."""

import os
import subprocess
from shutil import which


def read_gpus() -> list[dict] | None:
    """`free` and `total` bytes of each GPU that CUDA_VISIBLE_DEVICES names; None without a driver, or RFT_STACK=cpu."""
    if which("nvidia-smi") is None or os.environ.get("RFT_STACK", "").startswith("cpu"):
        return None
    query = ["nvidia-smi", "--query-gpu=index,memory.free,memory.total,name", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
    if done.returncode:
        return None  # a driver library without a GPU
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = None if visible is None else {i.strip() for i in visible.split(",")}
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    # CUDA_VISIBLE_DEVICES="" and -1 hide every GPU; which ones UUIDs name is not printed here.
    by_index = wanted is not None and all(i.removeprefix("-").isdigit() for i in wanted if i)
    kept = [row for row in rows if not by_index or row[0] in wanted]
    return [{"free": int(free) * 2**20, "total": int(total) * 2**20, "name": name} for _, free, total, name in kept]
