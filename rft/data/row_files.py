"""Read JSON lines with the place of every mistake; write several files so that all appear, or none."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rft.problems import parse_line
from rft.record.digest import file_sha256, tree_digest

MANY = 20  # problems named before the rest is only counted


def read_rows(path: str | Path) -> Iterator[tuple[int, dict]]:
    """(line number, object) of each line of a JSONL file, streaming.

    Raises:
        ValueError: file, line and cause of the first line that is not a JSON object in UTF-8, or the file is empty.
    """
    path, number = Path(path), 0
    if not path.is_file():
        raise ValueError(f"found no file {path}; wanted JSON lines; correct the path")
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                yield number, parse_line(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    if number == 0:
        raise ValueError(f"{path}: found an empty file, wanted one JSON object a line; make the file again")


def json_line(row: dict) -> str:
    return json.dumps(row) + "\n"


@contextmanager
def written_together(directory: Path, names: Iterable[str], outdated: Iterable[str] = ()) -> Iterator[dict[str, Path]]:
    """Paths to write to, one for each of `names`; they get their names in `directory` when the block ends well.

    All are complete on the disk before the first is renamed, and the last name is renamed last: put the manifest
    there. The `outdated` files go just before it. When the block fails nothing in `directory` has changed. A kill
    between two renames leaves a manifest whose hashes do not fit the files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    partial = {name: directory / f".{name}.{os.getpid()}.partial" for name in names}
    try:
        yield partial
        for path in partial.values():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
        *data, last = partial
        for name in data:
            partial[name].replace(directory / name)
        for name in outdated:
            (directory / name).unlink(missing_ok=True)
        partial[last].replace(directory / last)
    finally:
        for path in partial.values():
            path.unlink(missing_ok=True)


def require_apart(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Before any work: raise ValueError where a command would write over one of its inputs, also through a link, or
    where a folder has the name of a file to write.
    """
    read = [(path, path.resolve()) for path in inputs]
    for output in outputs:
        if output.is_dir():
            raise ValueError(f"found a folder at {output}, wanted a file to write; pass another --out")
        for path, place in read:
            if output.resolve() == place or (output.exists() and path.exists() and output.samefile(path)):
                raise ValueError(
                    f"found {output} to write, which is the input {path}, wanted another file; pass another --out"
                )


def outdated_files(directory: Path, manifest: str, pattern: re.Pattern, written: Iterable[str]) -> list[str]:
    """Files of an earlier run in `directory` that a run which writes `written` must remove: they share problems with
    its files, and the new manifest would not name them.

    Raises:
        ValueError: a file whose name fits `pattern`, but which the earlier manifest does not name with this content:
            somebody else's, so not ours to remove.
    """
    found = sorted(p for p in directory.glob("*") if pattern.fullmatch(p.name) and p.name not in set(written))
    if not found:
        return []
    entries = _entries(directory / manifest)
    for path in found:
        if entries.get(path.name) != file_sha256(path):
            raise ValueError(
                f"found {path}, which this command would not write and which {manifest} beside it does not describe; "
                "wanted no file that may overlap the new ones; move it away, or pass another --out"
            )
    return [path.name for path in found]


def _entries(manifest: Path) -> dict[str, str]:
    """sha256 by name of the files that a manifest describes; of none where there is no manifest."""
    if not manifest.is_file():
        return {}
    try:
        return {name: entry["sha256"] for name, entry in json.loads(manifest.read_text())["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{manifest}: found no manifest of ours, wanted one; move the file away") from None


def write_rows(path: Path, rows: Iterable[dict]) -> dict:
    """Write JSON lines; return the manifest's entry, `{"rows": count, "sha256": of the file}`."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        for count, row in enumerate(rows, 1):  # noqa: B007  the last one is wanted
            stream.write(json_line(row))
    return {"rows": count, "sha256": file_sha256(path)}


def input_identity(path: Path) -> dict:
    """How a manifest names an input: by name and content, not by place, so that equal inputs give equal manifests."""
    return {"name": path.name, "sha256": file_sha256(path) if path.is_file() else tree_digest(path)}


def command(name: str, action: Callable[[], object]) -> int:
    """Run a command; a ValueError or OSError becomes one message on stderr and exit status 2."""
    try:
        action()
    except (ValueError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return 0
