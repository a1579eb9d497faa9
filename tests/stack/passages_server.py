"""The project's retriever over a few passages, for tests of what asks it."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TREES = {
    "Alder": "The alder's leaf has teeth.",
    "Birch": "The birch is white and slender.",
    "Oak": "The oak grows slowly and lives long.",
    "Yew": "The yew's seed is poison.",
}


def corpus(file: Path, passages: dict[str, str]) -> Path:
    """A corpus in wiki-18's form."""
    rows = [{"id": str(i), "contents": f'"{title}"\n{text}'} for i, (title, text) in enumerate(passages.items())]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@contextmanager
def retriever(folder: Path, passages: dict[str, str] | Path = TREES) -> Iterator[str]:
    """The address of a server that finds by words; it ends with the block.

    Args:
        folder: for its log and its index.
        passages: by their title, or a corpus.
    """
    log, searched = folder / "retriever.log", passages
    if isinstance(passages, dict):
        searched = corpus(folder / "corpus.jsonl", passages)
    command = [sys.executable, "-m", "rft.retriever", "--corpus", searched]
    command += ["--index", "bm25", "--index-dir", folder / "index", "--port", "0"]
    with log.open("w") as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        while not (found := re.search(r"serves at (http://[^:]+:\d+)", log.read_text())):
            if process.poll() is not None:
                raise RuntimeError(log.read_text())
            time.sleep(0.05)
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
