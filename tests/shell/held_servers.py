"""Servers that launchers of tests hold."""

import json
import subprocess
from pathlib import Path
from typing import NamedTuple


class Kind(NamedTuple):
    """A server as launch/service.sh names it."""

    name: str
    what: str
    says: str  # in the line that says that it answers
    path: str
    asked: dict
    found: list  # of `asked`
    prepare: str = ""  # what its launcher does first


CODE = Kind(
    "CODE_SERVER",
    "code server",
    ", isolation ",
    "/test_program",
    {"program": "def f(x):\n    return x", "tests": ["assert f(1) == 1", "assert f(2) == 1"], "max_execution_time": 5},
    [1, 0],
)
RETRIEVER = Kind(
    "RETRIEVER",
    "retriever",
    ", 2 passages of corpus.jsonl (sha256 ",
    "/retrieve",
    {"queries": ["mark1"], "topk": 1},
    ["1"],
    "use_retriever; ",
)


def corpus_of(place: Path, *texts: str) -> str:
    """The path of a corpus with a passage a text."""
    file = place / "corpus.jsonl"
    rows = [{"id": str(number), "contents": f'"title"\n{text}'} for number, text in enumerate(texts)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def answering(launcher: subprocess.Popen, kind: Kind) -> tuple[str, int]:
    """(URL, process id) of the server that a launcher of `hold` prints."""
    said = launcher.stdout.readline()
    assert said.startswith("run directory: "), said + launcher.stdout.read()
    while not (said := launcher.stdout.readline()).startswith(f"{kind.what}: http"):
        assert said.startswith(f"{kind.what}: "), said + launcher.stdout.read()  # its progress
    assert kind.says in said
    url, pid = launcher.stdout.readline().split()
    return url, int(pid)
