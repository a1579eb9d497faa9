"""The tiny search task for tests of the stack: its warm start from the cache, its data, and a retriever of them."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rft.tiny.warmstart import warm_started

ROOT = Path(__file__).resolve().parents[2]


def tiny_search(place: Path) -> tuple[Path, Path]:
    """The checkpoint that `launch/train_grpo_tiny_search.sh` starts from with seed 0, and the folder of its data."""
    data = place / "data"
    command = [sys.executable, "data/prepare_arithmetic.py", "--task", "search", "--out", str(data)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return warm_started(data / "warm.jsonl", 0, ROOT / ".cache/rft/warmstart", "search"), data


@contextmanager
def retriever(corpus: Path, log: Path) -> Iterator[str]:
    """The address of a bm25 retriever of this corpus on a free port, which ends with the block."""
    command = [sys.executable, "-m", "rft.retriever", "--corpus", str(corpus), "--index", "bm25", "--port", "0"]
    with log.open("wb") as out, subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out) as process:
        try:
            deadline = time.monotonic() + 300
            while not (found := re.search(r"serves at (http://\S+):", log.read_text())):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
                time.sleep(0.05)
            yield found[1]
        finally:
            process.terminate()
