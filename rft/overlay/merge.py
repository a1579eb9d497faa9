"""One patch on another release: three-way merge of every file that it changes."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from .diff import FileDiff, apply_diff
from .errors import USAGE, OverlayError

CLEAN, MOVED, CONFLICT, UPSTREAM, EMPTY = "clean", "moved", "conflict", "already upstream", "empty"
GONE, CHANGED = "the file is gone", "the patch deletes a file that has changed"
Tree = dict[str, bytes | None]  # path -> bytes, None: no such file


@dataclass
class Merged:
    """A patch on the new tree.

    `files` is what its files become (with conflict markers), `conflicts` path -> hunks that nobody could place, and
    `notes` path -> why, for a file that is not there or is no Python afterwards.
    """

    status: str
    files: Tree
    conflicts: dict[str, int] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def merge_patch(diffs: list[FileDiff], before: Tree, new: Tree, pristine: Tree, name: str) -> Merged:
    """Carry one patch from the tree that it was written for (`before`) to `new`.

    pristine: the new release's own files, by which "already upstream" is told from "empty" (an earlier patch of the
    series makes the same change).
    """
    result = Merged(CLEAN, {})
    upstream = True
    for diff in diffs:
        path, base, ours = diff.path, before.get(diff.path), new.get(diff.path)
        theirs = apply_diff(base, diff, name)
        merged, hunks, note = merge_file(base, ours, theirs, name)
        # With --check, which takes the patch's side of conflicts, `ours` may be none by an earlier patch's doing.
        if not hunks and not not_python(path, ours, None) and (note := not_python(path, merged, ours)):
            hunks = 1
        result.files[path] = merged
        if hunks:
            result.conflicts[path] = hunks
        if note:
            result.notes[path] = note
        upstream = upstream and merge_file(base, pristine.get(path), theirs, name) == (pristine.get(path), 0, "")
    if result.conflicts:
        result.status = CONFLICT
    elif all(data == new.get(path) for path, data in result.files.items()):
        result.status = UPSTREAM if upstream else EMPTY
    elif not _applies(diffs, new, result.files, name):
        result.status = MOVED
    return result


def _applies(diffs: list[FileDiff], new: Tree, files: Tree, name: str) -> bool:
    """Whether the patch applies as it is, every hunk at the line that it states."""
    try:
        return all(apply_diff(new.get(diff.path), diff, name) == files[diff.path] for diff in diffs)
    except OverlayError:
        return False


def not_python(path: str, merged: bytes | None, ours: bytes | None) -> str:
    """Why a merge without conflicts needs a look all the same; empty when it does not, or is upstream's file `ours`."""
    if not path.endswith(".py") or merged is None or merged == ours:
        return ""
    try:
        compile(merged, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return f"does not compile: {error}"
    return ""


def merge_file(
    base: bytes | None, ours: bytes | None, theirs: bytes | None, name: str
) -> tuple[bytes | None, int, str]:
    """(merged bytes, hunks in conflict, note); None is "no such file" everywhere.

    ours: the new release's side. A file that is gone there stays away: its hunks have to be carried to where the code
    went. One that the patch deletes, and that upstream has changed, stays as it is.
    """
    if ours == theirs or base == theirs:
        return ours, 0, ""
    if ours == base:
        return theirs, 0, ""
    if ours is None:
        return None, 1, GONE
    if theirs is None:
        return ours, 1, CHANGED
    return *_git_merge(base or b"", ours, theirs, name), ""


def _git_merge(base: bytes, ours: bytes, theirs: bytes, name: str) -> tuple[bytes, int]:
    """`git merge-file`, whose exit status counts the conflicts."""
    with tempfile.TemporaryDirectory(prefix="rft-merge-") as folder:
        names = []
        for label, data in (("ours", ours), ("base", base), ("theirs", theirs)):
            names.append(str(Path(folder, label)))
            Path(folder, label).write_bytes(data)
        labels = ["-L", "upstream", "-L", "before the patch", "-L", name]
        command = ["git", "merge-file", "--stdout", "--quiet", "--diff3", *labels, *names]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        environment |= {"GIT_CEILING_DIRECTORIES": str(Path(folder).parent), "GIT_CONFIG_GLOBAL": os.devnull}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    if done.returncode > 127:  # negative, as a status: an error
        raise OverlayError(USAGE, f"git merge-file failed on a file of {name}", found=done.stderr.decode().strip())
    return done.stdout, done.returncode


def markers(data: bytes) -> list[int]:
    """1-based lines that begin as conflict markers do."""
    starts = (b"<<<<<<< ", b"||||||| ", b">>>>>>> ")
    return [number for number, line in enumerate(data.split(b"\n"), 1) if line.startswith(starts)]


def their_side(data: bytes) -> bytes:
    """A file with conflict markers, each settled by the patch's own lines: how `--check` goes on."""
    result, side = [], "both"
    for line in data.splitlines(keepends=True):
        mark = line[:8]
        if mark == b"<<<<<<< ":
            side = "ours"
        elif mark == b"||||||| " and side == "ours":
            side = "base"
        elif line.rstrip(b"\r\n") == b"=======" and side == "base":
            side = "theirs"
        elif mark == b">>>>>>> " and side == "theirs":
            side = "both"
        elif side in ("both", "theirs"):
            result.append(line)
    return b"".join(result)
