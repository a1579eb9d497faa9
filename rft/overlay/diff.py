"""Strict reader and applier of git-format unified diffs, byte for byte.

A hunk applies at the line it states or not at all: no fuzz, no offset. `patch -F0` and `git apply` both move a hunk to
another place when its block occurs twice in a file, and exit 0.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, replace

from .errors import DOES_NOT_APPLY, OverlayError

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_GIT = re.compile(rb"diff --git a/(\S+) b/(\S+)\n")
PLAIN_PATH = re.compile(r"[A-Za-z0-9_+\-][A-Za-z0-9_.+\-]*(/[A-Za-z0-9_+\-][A-Za-z0-9_.+\-]*)*")
_REFUSED = {
    b"old mode": "changes a file mode",
    b"new mode": "changes a file mode",
    b"rename from": "renames a file",
    b"copy from": "copies a file",
    b"similarity index": "renames or copies a file",
    b"dissimilarity index": "rewrites a file",
    b"GIT binary patch": "is binary",
    b"Binary files": "is binary",
}


@dataclass(frozen=True)
class Hunk:
    """Lines `old` at 1-based line `old_start` become `new` at `new_start`; lines keep their line ends."""

    old_start: int
    old: tuple[bytes, ...]
    new_start: int
    new: tuple[bytes, ...]


@dataclass(frozen=True)
class FileDiff:
    """The change of one file; `kind` is modify, create or delete, `path` is relative to site-packages."""

    path: str
    kind: str
    hunks: tuple[Hunk, ...]


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their ends, split at LF only, so that CR stays part of the line."""
    return io.BytesIO(data).readlines()


def header_text(data: bytes) -> str:
    """The text before the first `diff --git` line."""
    at = 0 if data.startswith(b"diff --git ") else data.find(b"\ndiff --git ") + 1
    return (data[:at] if at or data.startswith(b"diff --git ") else data).decode(errors="replace")


def parse_patch(data: bytes, name: str) -> list[FileDiff]:
    """Read a patch file.

    Raises OverlayError (exit 4) that names the patch and line for anything but plain creation, deletion and
    modification of regular files with safe relative paths.
    """
    lines = split_lines(data)
    diffs: list[FileDiff] = []
    at = 0
    while at < len(lines) and not lines[at].startswith(b"diff --git "):
        at += 1
    while at < len(lines):
        diff, at = _parse_file(lines, at, name)
        if any(diff.path == other.path for other in diffs):
            raise _bad(name, at, f"changes {diff.path} twice")
        diffs.append(diff)
    if not diffs:
        raise _bad(name, 0, "holds no git-format diff")
    return diffs


def _parse_file(lines: list[bytes], at: int, name: str) -> tuple[FileDiff, int]:
    path = _paths(lines[at], name, at)
    kind, at = "modify", at + 1
    while at < len(lines) and not lines[at].startswith((b"--- ", b"diff --git ", b"-- ")):
        line = lines[at]
        for prefix, why in _REFUSED.items():
            if line.startswith(prefix):
                raise _bad(name, at, f"{why} ({path}), which the overlay does not support")
        if line.startswith((b"new file mode ", b"deleted file mode ")):
            if line.split()[-1] != b"100644":
                raise _bad(name, at, f"{path} is not a plain file of mode 100644")
            kind = "create" if line.startswith(b"new") else "delete"
        elif line.strip() and not line.startswith(b"index "):
            raise _bad(name, at, f"unknown line {line[:60]!r}")
        at += 1
    hunks: list[Hunk] = []
    if at < len(lines) and lines[at].startswith(b"--- "):
        old = b"/dev/null" if kind == "create" else b"a/" + path.encode()
        new = b"/dev/null" if kind == "delete" else b"b/" + path.encode()
        if lines[at].rstrip(b"\n") != b"--- " + old or lines[at + 1 : at + 2] != [b"+++ " + new + b"\n"]:
            raise _bad(name, at, f"the ---/+++ lines do not match `diff --git` of {path} ({kind})")
        at += 2
        while at < len(lines) and lines[at].startswith(b"@@ "):
            hunk, at = _parse_hunk(lines, at, name)
            hunks.append(hunk)
    if kind == "modify" and not hunks:
        raise _bad(name, at, f"changes nothing in {path}")
    at = _skip_signature(lines, at)
    if at < len(lines) and not lines[at].startswith(b"diff --git "):
        raise _bad(name, at, f"unexpected line {lines[at][:60]!r}")
    return FileDiff(path, kind, tuple(hunks)), at


def _skip_signature(lines: list[bytes], at: int) -> int:
    """Skip blank lines and the `-- ` signature with its version line that `git format-patch` ends a file with."""
    end = at + 2 if lines[at : at + 1] == [b"-- \n"] else at
    while end < len(lines) and not lines[end].strip():
        end += 1
    return end


def _parse_hunk(lines: list[bytes], at: int, name: str) -> tuple[Hunk, int]:
    match = _HUNK.match(lines[at])
    if not match:
        raise _bad(name, at, f"malformed hunk line {lines[at][:60]!r}")
    old_start, old_count, new_start, new_count = (1 if g is None else int(g) for g in match.groups())
    old: list[bytes] = []
    new: list[bytes] = []
    at += 1
    while len(old) < old_count or len(new) < new_count or (lines[at : at + 1] and lines[at].startswith(b"\\")):
        if at == len(lines):
            raise _bad(name, at, "the last hunk is cut short")
        tag, text = lines[at][:1], lines[at][1:]
        sides = {b" ": (old, new), b"-": (old,), b"+": (new,)}.get(tag)
        if tag == b"\\":
            previous = lines[at - 1][:1]
            for side in {b" ": (old, new), b"-": (old,), b"+": (new,)}.get(previous, ()):
                side[-1] = side[-1].removesuffix(b"\n")
        elif sides is None:
            raise _bad(name, at, f"hunk line starts with {tag!r}, wanted ' ', '-', '+' or '\\'")
        else:
            for side in sides:
                side.append(text)
        at += 1
    if (len(old), len(new)) != (old_count, new_count):
        raise _bad(name, at, "the line counts of a hunk do not match its body")
    for side in (old, new):
        if any(not line.endswith(b"\n") for line in side[:-1]):
            raise _bad(name, at, "a line without line end inside a hunk")
    return Hunk(old_start, tuple(old), new_start, tuple(new)), at


def _paths(line: bytes, name: str, at: int) -> str:
    match = _GIT.fullmatch(line)
    if not match or match[1] != match[2]:
        raise _bad(name, at, f"unsupported file line {line[:120]!r}: two equal plain paths a/… b/… are wanted")
    path = match[1].decode(errors="replace")
    if not PLAIN_PATH.fullmatch(path) or ".." in path.split("/"):
        raise _bad(name, at, f"unsafe path {path!r}")
    return path


def _bad(name: str, at: int, why: str) -> OverlayError:
    return OverlayError(DOES_NOT_APPLY, f"{name}, line {at + 1}: {why}")


def reverse(diff: FileDiff) -> FileDiff:
    """The diff that undoes `diff`."""
    kind = {"create": "delete", "delete": "create"}.get(diff.kind, "modify")
    hunks = tuple(Hunk(h.new_start, h.new, h.old_start, h.old) for h in diff.hunks)
    return replace(diff, kind=kind, hunks=hunks)


def apply_diff(data: bytes | None, diff: FileDiff, name: str) -> bytes | None:
    """Apply one file's diff to its bytes; None stands for "no such file" on both sides.

    Raises OverlayError (exit 4) when any hunk does not match at exactly its stated old and new line.
    """
    where = f"{name} does not apply to {diff.path}"
    if diff.kind == "create":
        if data is not None:
            raise OverlayError(DOES_NOT_APPLY, where, found="the file exists", wanted="no such file")
        data = b""
    elif data is None:
        raise OverlayError(DOES_NOT_APPLY, where, found="no such file", wanted="a file to change")
    source = split_lines(data)
    result: list[bytes] = []
    done = 0
    for number, hunk in enumerate(diff.hunks, 1):
        start = hunk.old_start - 1 if hunk.old else hunk.old_start
        found = source[start : start + len(hunk.old)]
        if start < done or found != list(hunk.old):
            raise _mismatch(where, number, hunk, source, start)
        result += source[done:start]
        if len(result) != (hunk.new_start - 1 if hunk.new else hunk.new_start):
            raise OverlayError(
                DOES_NOT_APPLY,
                where,
                found=f"hunk {number} lands at line {len(result) + 1}",
                wanted=str(hunk.new_start),
            )
        result += hunk.new
        done = start + len(hunk.old)
    result += source[done:]
    if any(not line.endswith(b"\n") for line in result[:-1]):
        raise OverlayError(DOES_NOT_APPLY, where, found="a line without line end before the end of the file")
    if diff.kind == "delete":
        if result:
            raise OverlayError(DOES_NOT_APPLY, where, found=f"{len(result)} lines that the deletion does not list")
        return None
    return b"".join(result)


def _mismatch(where: str, number: int, hunk: Hunk, source: list[bytes], start: int) -> OverlayError:
    found = source[start : start + len(hunk.old)]
    first = next((i for i, line in enumerate(hunk.old) if found[i : i + 1] != [line]), 0)
    size = len(hunk.old)
    elsewhere = [i + 1 for i in range(len(source) - size + 1) if size and source[i : i + size] == list(hunk.old)]
    note = f"; the block is at line {elsewhere}, but offsets are never accepted" if elsewhere else ""
    line = source[start + first] if 0 <= start + first < len(source) else b"<end of file>"
    return OverlayError(
        DOES_NOT_APPLY,
        f"{where}: hunk {number}",
        found=f"line {start + first + 1}: {line!r}{note}",
        wanted=repr(hunk.old[first]) if hunk.old else "an earlier insertion point",
    )
