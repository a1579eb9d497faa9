"""A folder of problem files as one command makes it: all or none, kept where complete, replaced where asked alone."""

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rft import __version__
from rft.data import hub
from rft.data.row_files import require_apart
from rft.data.sets import Input
from rft.record.digest import file_sha256

if TYPE_CHECKING:
    from rich.table import Table

STAGE = ".making"


def make(
    out: Path,
    name: str,
    settings: dict,
    given: list[Input] | None,
    fetch: Callable[[], list[Input]],
    build: Callable[[Path, list[Input]], dict],
    force: bool,
    outdated: Callable[[dict], list[str]] = lambda manifest: [],
) -> tuple[dict, bool]:
    """The problem files of a task in `out`, all or none.

    Args:
        name: of the manifest, which `build` writes too.
        settings: what decides the files, beside their sources.
        given: the published files; None to have them from `fetch`.
        build: writes every file below a folder, and returns the manifest (`write_manifest`).
        force: replace files in `out` that differ from what is made.
        outdated: files in `out` that are in the way of a manifest's.

    Returns:
        The manifest, and whether it was there already, with every file as it says: then nothing has been read or made.

    Raises:
        ValueError: bad input, or `out` has files that differ. No problem file in `out` has changed then.
        OSError: the disk is full, or a place cannot be written.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"found a file at {out}, wanted a folder to write to; pass another --out")
    out.mkdir(parents=True, exist_ok=True)
    with alone(out):
        former = read_manifest(out / name)
        if former and not force:
            require_same(out / name, former, settings)
        if former and complete(out, former, settings, given):
            return former, True
        stage = out / STAGE
        shutil.rmtree(stage, ignore_errors=True)  # of a killed command
        try:
            inputs = given or fetch()
            manifest = build(stage, inputs)
            require_apart([out / each for each in manifest["files"]], [each.path for each in inputs])
            in_the_way = outdated(manifest)
            require_replaceable(out, manifest, in_the_way, force)
            place(stage, out, name, manifest, in_the_way)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    return manifest, False


def write_manifest(path: Path, settings: dict, inputs: list[Input], entries: dict[str, dict], **more: object) -> dict:
    """The manifest that it has written: of files made of `inputs`; `entries` by file, `more` is the task's own."""
    made_by = {"settings": settings, "versions": {"rft": __version__}, "sources": sources_of(inputs)}
    manifest = made_by | more | {"files": entries}
    path.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def write_decontamination(
    path: Path, train: str, entries: dict[str, dict], evaluated: list[str], settings: dict, rejected: list[dict]
) -> dict:
    """What preflight asks of a training file: the evaluation files that it has no copy of, and what was rejected.

    Args:
        train: name of the training file; `entries` has its entry and those of `evaluated`, with `sha256` and `rows`.

    Returns:
        The entry of this file itself.
    """
    sets = [{"name": each, "sha256": entries[each]["sha256"], "problems": entries[each]["rows"]} for each in evaluated]
    decontamination = {"settings": settings, "eval_sets": sets, "rejected": rejected}
    document = {"files": {train: entries[train]}, "decontamination": decontamination}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return {"sha256": file_sha256(path)}


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """No second command makes data in this folder meanwhile."""
    with (out / ".make.lock").open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"found another command at work in {out}, wanted none; wait for it") from None
        yield


def read_manifest(path: Path) -> dict | None:
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not all(entry["sha256"] for entry in [*found["files"].values(), *found["sources"]]) or not found["settings"]:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path}: found no manifest of ours, wanted one; move the file away") from None
    return found


def require_same(manifest: Path, former: dict, settings: dict) -> None:
    """ValueError where the folder was made with other settings, or one of its files has changed since."""
    out = manifest.parent
    others = [name for name, value in settings.items() if former["settings"].get(name) != value]
    if others:
        there, asked = (", ".join(f"{n} {of.get(n)}" for n in others) for of in (former["settings"], settings))
        raise ValueError(
            f"found {out} made with {there}, wanted {asked}; pass the same again, another --out, "
            "or --force to replace the files"
        )
    changed = [n for n, e in former["files"].items() if (out / n).is_file() and file_sha256(out / n) != e["sha256"]]
    if changed:
        raise ValueError(
            f"found {out / changed[0]} changed since it was made (sha256 in {manifest.name}), wanted it as made; "
            "move it away and run this again, or pass --force to replace it"
        )


def complete(out: Path, former: dict, settings: dict, inputs: list[Input] | None) -> bool:
    """Whether every file is there, of these settings and sources, with its hash."""
    if former["settings"] != settings:
        return False
    if inputs is None:
        pinned = hub.read_lock(out / hub.LOCK)
        if any(pinned.get(s["source"], {}).get("revision") != s["revision"] for s in former["sources"]):
            return False
    elif {(e["name"], e["sha256"]) for e in former["sources"]} != {(i.name, file_sha256(i.path)) for i in inputs}:
        return False
    return all((out / n).is_file() and file_sha256(out / n) == e["sha256"] for n, e in former["files"].items())


def require_replaceable(out: Path, manifest: dict, outdated: list[str], force: bool) -> None:
    """ValueError where a file in `out` has another content than `manifest` says, or is `outdated`, and not `force`."""
    differ = [*filter(lambda name: _differs(out, manifest, name), manifest["files"]), *outdated]
    if differ and not force:
        raise ValueError(
            f"found {out / differ[0]} with another content than what was made"
            f"{f' (and {len(differ) - 1} more)' if len(differ) > 1 else ''}; wanted no file that this command did not "
            "make; pass another --out, or --force to replace them"
        )


def place(stage: Path, out: Path, name: str, manifest: dict, outdated: list[str]) -> None:
    """Give the files below `stage` their names in `out`, those that are there already are kept; then the manifest."""
    for each in manifest["files"]:
        if _differs(out, manifest, each) or not (out / each).is_file():
            (out / each).parent.mkdir(exist_ok=True)
            (stage / each).replace(out / each)
    for each in outdated:
        (out / each).unlink(missing_ok=True)
    (stage / name).replace(out / name)


def _differs(out: Path, manifest: dict, name: str) -> bool:
    return (out / name).is_file() and file_sha256(out / name) != manifest["files"][name]["sha256"]


def sources_of(inputs: list[Input]) -> list[dict]:
    """How a manifest names published files: by name, origin and content, not by their place on this machine."""
    return [
        {name: value for name, value in each._asdict().items() if name != "path"} | {"sha256": file_sha256(each.path)}
        for each in inputs
    ]


def origin(inputs: list[Input]) -> dict:
    """`source` and `revision` of files made of these inputs: repositories and their commits, or the files given."""
    found = dict.fromkeys((each.source, each.revision[:12]) if each.revision else (each.name, "") for each in inputs)
    return {"source": "\n".join(source for source, _ in found), "revision": "\n".join(r for _, r in found).strip()}


def show(manifest: dict, out: Path) -> None:
    """Print what is in a folder, a row a file."""
    from rich.console import Console

    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=140)  # else 80 in a file
    console.print(table(manifest, out))


def table(manifest: dict, out: Path) -> "Table":
    """What is in a folder, a row a file."""
    from rich.table import Table

    shown = Table(title=str(out), title_justify="left")
    shown.add_column("file", no_wrap=True)
    shown.add_column("rows", justify="right", no_wrap=True)
    shown.add_column("source", overflow="fold")
    shown.add_column("revision", no_wrap=True)
    shown.add_column("dropped", overflow="fold")
    for name, entry in manifest["files"].items():
        if "rows" in entry:
            dropped = "\n".join(f"{count:,} {reason}" for reason, count in entry["dropped"].items())
            shown.add_row(name, f"{entry['rows']:,}", entry["source"], entry["revision"], dropped)
    return shown
