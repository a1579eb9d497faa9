"""The table of metrics in docs/metrics.md, as tests read it."""

import re
from pathlib import Path

TABLE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def metric_sources() -> dict[str, str]:
    """Each documented metric's source, the third cell of its row; AssertionError where a cell is missing or empty."""
    rows = [line.split(" | ") for line in TABLE.read_text().splitlines() if line[:3] == "| `"]
    assert all(len(row) == 4 and all(cell.strip(" |") for cell in row) for row in rows)
    return {name: row[2] for row in rows for name in re.findall(r"`([\w/]+)`", row[0])}
