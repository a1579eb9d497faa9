"""Results of a benchmark: one JSON and one markdown file, rewritten after every single measurement."""

import os
import shutil
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.gpu_memory import query
from rft import overlay
from rft.record.files import replace_json, replace_text
from rft.runs.manifest import git_state, versions

START = time.monotonic()


def log(message: str) -> None:
    """Print a line with the time of day and the seconds since this process began."""
    print(f"[{time.strftime('%H:%M:%S')} +{time.monotonic() - START:.0f}s] {message}", flush=True)


def describe() -> dict:
    """What was measured on what: time, commit, fingerprints of the patched packages, versions, device.

    `RFT_COMMIT` names the commit where the files came without their repository.
    """
    import torch  # seconds, and most who log need none of it

    devices = query("--query-gpu=name") if shutil.which("nvidia-smi") else []
    state = git_state()
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": state["commit"] or os.environ.get("RFT_COMMIT"),
        "dirty": state["dirty"],
        "tree_id": overlay.tree_ids(),
        "versions": versions() | {"torch": torch.__version__},
        "devices": devices or ["cpu"],
        "parts": {},
    }


def save(out: Path, name: str, record: dict, body: str) -> None:
    """Write `name.json` and `name.md` into `out`; a reader meets the old file or the new one, never a half."""
    tree = ", ".join(f"{package} {tree_id}" for package, tree_id in record["tree_id"].items())
    commit = (record["commit"] or "unknown commit")[:12] + (" with local changes" if record["dirty"] else "")
    failed = [f"- **{part} failed**: {found['error']}" for part, found in record["parts"].items() if "error" in found]
    head = f"{record['started'][:10]}, {commit}, {', '.join(record['devices'])}; patched trees: {tree}"
    replace_json(out / f"{name}.json", record)
    replace_text(out / f"{name}.md", "\n\n".join([head, *(["\n".join(failed)] if failed else []), body]) + "\n")


@contextmanager
def part(record: dict, name: str, publish: Callable[[], None]):
    """One part of a benchmark: yields its dict in `record["parts"]`, adds its seconds, and publishes.

    A part that raises leaves what it had measured, with `error`; the parts after it still run, since machine time is
    scarce. `exit_code` tells the caller's shell.
    """
    found = record["parts"].setdefault(name, {})
    begin = time.monotonic()
    log(f"{name}: begin")
    try:
        yield found
    except Exception as error:
        traceback.print_exc()
        found["error"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    found["seconds"] = round(time.monotonic() - begin, 2)
    publish()
    log(f"{name}: {'FAILED' if 'error' in found else 'done'} after {found['seconds']:.1f} s")


def exit_code(record: dict) -> int:
    """1 when any part failed."""
    return int(any("error" in found for found in record["parts"].values()))


def markdown(header: tuple[str, ...], rows: list[tuple]) -> str:
    """A markdown table; floats with four significant digits."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(_cell(value) for value in line) + " |" for line in lines)


def _cell(value) -> str:
    if value is None:
        return "n/a"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
