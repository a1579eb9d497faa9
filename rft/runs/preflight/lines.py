"""What `rft.runs.preflight` looks at: one module a subject, one function a check, no torch."""

import json
from pathlib import Path
from typing import NamedTuple

GO, WARN, NO_GO = "go", "warn", "no-go"


class Line(NamedTuple):
    """One line of the page: what was checked, verdict, measured value, and the command or change that repairs."""

    name: str
    verdict: str
    measured: str
    repair: str = ""


def lines(name: str, faults: list[Line], measured: str) -> list[Line]:
    """The faults, or one line `go` with what was measured."""
    return faults or [Line(name, GO, measured)]


def read_config(pretrain: str | None) -> dict:
    """The model's config.json; empty where `pretrain` is no directory with one (a hub name)."""
    path = Path(pretrain or "", "config.json")
    return json.loads(path.read_text()) if pretrain and path.is_file() else {}


def gigabytes(size: float) -> str:
    """Bytes as text, in decimal units."""
    for unit, bound in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= bound:
            return f"{size / bound:.1f} {unit}"
    return f"{size:.0f} B"
