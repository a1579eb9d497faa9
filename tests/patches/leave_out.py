"""What a series makes of the files when some of its patches are left out.

Each file is held as a weave (M. J. Rochkind, "The Source Code Control System", 1975): every line that any version has
had, with the patch that added it and the patch that deleted it. Any subset of the patches can be read off, also where
one patch's line stands next to another's, which a three-way merge calls a conflict.
"""

import difflib
import json
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from rft.overlay.diff import split_lines
from rft.overlay.series import Package


@dataclass
class Line:
    """One line with its end; `added` and `deleted` are patch names, None for upstream's and for never."""

    text: bytes
    added: str | None
    deleted: str | None = None


@dataclass
class Weave:
    """One file; `needs` maps a patch to the earlier ones whose lines it changes or stands inside."""

    lines: list[Line]
    created: str | None
    exists_upstream: bool
    deleted: str | None = None
    needs: dict[str, set[str]] = field(default_factory=dict)

    def lines_without(self, out: set[str]) -> list[Line] | None:
        """The lines of the file when the patches `out` are left out; None where there is no such file."""
        never_made = not self.exists_upstream and self.created in out
        if never_made or (self.deleted is not None and self.deleted not in out):
            return None
        return [x for x in self.lines if x.added not in out and (x.deleted is None or x.deleted in out)]

    def without(self, out: set[str]) -> bytes | None:
        lines = self.lines_without(out)
        return None if lines is None else b"".join(x.text for x in lines)


def weave(package: Package, path: str, pristine: bytes | None) -> Weave:
    """Replay the series on one file."""
    diffs = package.diffs[path]
    creator = next((name for name, diff in diffs if diff.kind == "create"), None)
    result = Weave([Line(text, None) for text in split_lines(pristine or b"")], creator, pristine is not None)
    for name, diff in diffs:
        needs = result.needs.setdefault(name, set())
        if result.created not in (None, name):
            needs.add(result.created)
        for hunk in reversed(diff.hunks):  # from the end, so that the places of earlier hunks stay
            _apply_hunk(result, name, hunk, needs)
        if diff.kind == "delete":
            result.deleted = name
        needs.discard(name)
    return result


def _apply_hunk(result: Weave, name: str, hunk, needs: set[str]) -> None:
    visible = [n for n, line in enumerate(result.lines) if line.deleted is None]
    first = hunk.old_start - 1 if hunk.old else hunk.old_start
    matcher = difflib.SequenceMatcher(None, hunk.old, hunk.new, autojunk=False)
    for tag, i, j, a, b in reversed(matcher.get_opcodes()):
        if tag == "equal":
            continue
        for n in visible[first + i : first + j]:
            result.lines[n].deleted = name
            needs |= {result.lines[n].added} - {None}
        before, after = (
            result.lines[visible[k]].added if 0 <= k < len(visible) else None for k in (first + i - 1, first + j)
        )
        if before == after and before is not None:
            needs.add(before)
        at = visible[first + j - 1] + 1 if first + j else 0
        result.lines[at:at] = [Line(text, name) for text in hunk.new[a:b]]


@dataclass(frozen=True)
class Tree:
    """The patched files of one package (path -> bytes, None: no such file), and the patches that are left out of it."""

    files: dict[str, bytes | None]
    out: frozenset[str]


def leave_out(package: Package, pristine: dict[str, bytes | None], names: set[str]) -> Tree:
    """The package's files without the patches `names`, and without the later ones that cannot stand without them.

    Dropped along are patches that change a line of a dropped one, stand inside its lines, use a name that it brought
    in, or would be no Python without it.
    """
    weaves = {path: weave(package, path, pristine[path]) for path in package.diffs}
    out = set(names)
    broken_anyway: dict[str, set[str]] = {}  # path -> faults that the whole series has as well
    while True:
        for name in package.patches:  # in order: what a dropped patch needs, stands before it
            if any(woven.needs.get(name, set()) & out for woven in weaves.values()):
                out.add(name)
        blamed = set()
        for path, woven in weaves.items():
            if not out & woven.needs.keys():
                continue
            broken_anyway.setdefault(path, {text for text, _ in _faults(path, woven, set())})
            for text, name in _faults(path, woven, out):
                if text not in broken_anyway[path]:
                    blamed |= {name} if name else {n for n in woven.needs if n not in out}
        if not blamed:
            return Tree({path: woven.without(out) for path, woven in weaves.items()}, frozenset(out))
        out |= blamed


def _faults(path: str, woven: Weave, out: set[str]) -> list[tuple[str, str | None]]:
    """(message, patch that added the line) of every undefined name and syntax error; upstream's own lines are left."""
    lines = woven.lines_without(out)
    if lines is None or not path.endswith(".py"):
        return []
    found = []
    for fault in _ruff(b"".join(line.text for line in lines)):
        row = min(fault["location"]["row"], len(lines)) - 1
        if lines[row].added or fault["code"] != "F821":
            found.append((fault["message"], lines[row].added))
    return found


@cache
def _ruff(source: bytes) -> list[dict]:
    """Undefined names and syntax errors. Asked of every patch in turn, most files are as they were before."""
    options = ["--isolated", "--no-cache", "--ignore-noqa", "--select=F821", "--output-format=json"]
    command = [str(Path(sys.executable).parent / "ruff"), "check", *options, "-"]
    return json.loads(subprocess.run(command, input=source, capture_output=True, check=False).stdout)
