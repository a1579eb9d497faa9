"""The tiny search task for tests of the stack: its warm start from the cache, and its data."""

import subprocess
import sys
from pathlib import Path

from rft.tiny.warmstart import warm_started

ROOT = Path(__file__).resolve().parents[2]


def tiny_search(place: Path) -> tuple[Path, Path]:
    """The checkpoint that `launch/train_grpo_tiny_search.sh` starts from with seed 0, and the folder of its data."""
    data = place / "data"
    command = [sys.executable, "data/prepare_arithmetic.py", "--task", "search", "--out", str(data)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return warm_started(data / "warm.jsonl", 0, ROOT / ".cache/rft/warmstart", "search"), data
