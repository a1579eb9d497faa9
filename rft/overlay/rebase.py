"""rebase: carry a series to another release, patch by patch, and write it as a series of its own.

Each patch is merged three ways, in order: from the tree that it was written for, to the new release with the patches
before it. A patch that an earlier rebase has carried, and that has not changed since, is taken as it was carried then,
so that a conflict is settled once. The work is a repository as `edit` makes it, and one file of state.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from .author import write_series
from .commits import (
    REBASE,
    changed_files,
    commit_patch,
    git,
    git_file,
    make_repository,
    read_commits,
    require_committed,
)
from .diff import FileDiff, apply_diff, header_text, parse_patch
from .errors import NOT_WANTED, USAGE, OverlayError
from .headers import commit_message, due
from .merge import CHANGED, CONFLICT, EMPTY, GONE, UPSTREAM, Merged, Tree, markers, merge_patch, not_python, their_side
from .rebase_source import EDITED, OWN, RESOLVED, Carried, Source, changes, digests, with_header
from .series import Package, dump, sha256
from .upstream import Release

BEGUN = ".git/rft-begun"  # first of all: what holds it is ours to remove
DROPPED = (UPSTREAM, EMPTY)


@dataclass(frozen=True)
class Step:
    """One patch to carry: its file, and the tree that it was written for."""

    name: str
    data: bytes
    before: Tree
    digests: dict[str, str]  # of the patch in the old series
    earlier: dict | None  # its row of the rebase before this one, where that carried the same patch
    settled: str = ""  # its state there, where it was settled by hand and has changed since


def check(source: Source, release: Release, old: Release) -> dict:
    """The report of a rebase that writes nothing; after a conflict it goes on with the patch's own side."""
    pristine: Tree = dict(release.files)
    tree, rows = dict(pristine), []
    for step in _steps(source, release.files, old.files):
        merged = _merge(step, tree, pristine, lambda: release.files)
        for path, data in merged.files.items():
            tree[path] = their_side(data) if path in merged.conflicts and data is not None else data
        rows.append(_row(step, merged, source, release.version))
    return _report(source, rows, _changed(old.requires, release.requires))


def start(source: Source, release: Release, old: Release, work: Path) -> dict:
    """Make the repository `work`, and carry until the end or the first conflict; returns the report."""
    if (work / REBASE).is_file():
        raise OverlayError(
            USAGE,
            f"a rebase is under way in {work}",
            wanted="none",
            repair=f"{source.command} --continue, or begin again: rm -r {work}",
        )
    if work.exists() and any(work.iterdir()) and not (work / BEGUN).is_file():
        raise OverlayError(USAGE, f"{work} is not empty", wanted="a new folder", repair="pass another --dir")
    shutil.rmtree(work, ignore_errors=True)  # what was killed before it had a state
    (work / BEGUN).parent.mkdir(parents=True)
    (work / BEGUN).touch()
    title = f"{source.package.import_name} {release.version} as upstream ships it"
    make_repository(work, dict(release.files), title, release.version)
    for path, data in old.files.items():
        place = work / ".git/rft-old" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    state = {"version": release.version, "ids": source.ids, "rows": [], "pending": None}
    state |= {"wheels": {release.name: sha256(release.wheel.read_bytes())} if release.wheel else {}}
    _save(work, state | {"requirements": _changed(old.requires, release.requires)})
    return _carry(source, work)


def resume(source: Source, work: Path) -> dict:
    """Go on where a conflict, or a kill, has left the repository `work`."""
    if not (work / REBASE).is_file():
        raise OverlayError(USAGE, f"no rebase is under way in {work}", repair=source.command)
    state = json.loads((work / REBASE).read_text())
    if state["version"] != source.version:
        raise OverlayError(
            USAGE,
            f"the rebase in {work} is to another version",
            found=state["version"],
            wanted=source.version,
            repair="pass the --dir of this one, or the version of that one",
        )
    if state.get("writing"):
        return _write_series(source, work, state)
    if state["ids"] != source.ids:
        raise OverlayError(
            NOT_WANTED,
            f"the patches have changed since the rebase in {work} began",
            found=" ".join(source.ids),
            wanted=" ".join(state["ids"]),
            repair=f"rm -r {work} && {source.command}",
        )
    made = int(git(work, "rev-list", "--count", "base..HEAD"))
    expected = sum(row["status"] not in DROPPED for row in state["rows"])
    pending = state["pending"]
    if pending and made == expected:
        if pending["status"] != CONFLICT:  # killed before the commit
            _discard(work)
        else:
            state["rows"].append(pending | {"status": _settle(work, pending)})
    elif pending and made == expected + 1:  # committed by hand, or killed behind the commit
        if pending["status"] == CONFLICT:
            _require_settled(work, pending, "HEAD~1")
            require_committed(work)
            pending["status"] = RESOLVED
        state["rows"].append(pending)
    elif made == expected:  # killed between two patches
        _discard(work)
    else:
        raise OverlayError(
            NOT_WANTED,
            f"{work} has {made} commits after the tag base",
            wanted=f"{expected}, one for each patch that is carried",
            repair=f"git -C {work} log base..HEAD; or begin again: rm -r {work} && {source.command}",
        )
    _save(work, state | {"pending": None})
    return _carry(source, work)


def _discard(work: Path) -> None:
    (work / ".git/index.lock").unlink(missing_ok=True)  # of a git that was killed
    git(work, "reset", "-q", "--hard", "HEAD")
    git(work, "clean", "-q", "-f", "-d")


def _settle(work: Path, pending: dict) -> str:
    """Commit what somebody made of a conflict; returns its state. Raises OverlayError (exit 1) while work is left."""
    _require_settled(work, pending, "HEAD")
    git(work, "add", "-A")
    if not git(work, "status", "--porcelain").strip():
        return EMPTY
    git(work, "commit", "-q", "-F", ".git/rft-message")
    return RESOLVED


def _require_settled(work: Path, pending: dict, before: str) -> None:
    """Refuse (exit 1) what is left to do in the files that differ from the revision `before`."""
    left = [f"{path}.rej is still there" for path in pending.get("conflicts", {}) if (work / f"{path}.rej").exists()]
    names = git(work, "diff", "--name-only", "--no-renames", "-z", before)
    names += git(work, "ls-files", "-z", "--others", "--exclude-standard")
    for path in sorted({name for name in names.decode().split("\0") if name}):
        data = (work / path).read_bytes() if (work / path).is_file() else None
        if data is not None and (lines := markers(data)) and not markers(git_file(work, before, path) or b""):
            left.append(f"{path} has conflict markers at lines {', '.join(map(str, lines))}")
        elif fault := not_python(path, data, None):
            left.append(f"{path} {fault}")
    if left:
        raise OverlayError(
            NOT_WANTED,
            f"{pending['patch']} is not settled",
            found="; ".join(left),
            wanted=f"its change made in {work}, without markers and .rej files",
            repair=f"edit the files{'' if before == 'HEAD' else ', amend the commit'}, then the same command again",
        )


def _carry(source: Source, work: Path) -> dict:
    """Merge and commit the patches that are left; then write the series, unless one is in conflict."""
    state = json.loads((work / REBASE).read_text())
    old = {str(p.relative_to(work / ".git/rft-old")): p.read_bytes() for p in _files(work / ".git/rft-old")}
    paths = sorted({diff.path for data in source.all_patches() for diff in parse_patch(data, "")})
    pristine = {path: git_file(work, "base", path) for path in paths}
    tree = {path: git_file(work, "HEAD", path) for path in paths}
    for step in [*_steps(source, pristine, old)][len(state["rows"]) :]:
        merged = _merge(step, tree, pristine, lambda: {str(p.relative_to(work)): p.read_bytes() for p in _python(work)})
        row = _row(step, merged, source, state["version"])
        if merged.status == CONFLICT:
            _leave(work, step, merged)
            _save(work, state | {"pending": row})
            return _report(source, [*state["rows"], row], state["requirements"]) | {"work": str(work)}
        if row["status"] not in DROPPED:
            _save(work, state | {"pending": row})
            commit_patch(work, step.name, step.data, merged.files)
            tree |= merged.files
        state["rows"].append(row)
        _save(work, state)
    return _write_series(source, work, state)


def _write_series(source: Source, work: Path, state: dict) -> dict:
    """Write what the commits of `work` make; returns the report."""
    if all(row["status"] in DROPPED for row in state["rows"]):
        raise OverlayError(NOT_WANTED, f"{source.name} needs none of the patches of {source.package.name}")
    state |= {"writing": True}
    _save(work, state)
    package = source.package
    contents = read_commits(work, source.patches)
    state.setdefault("made", {name: changes(data) for name, data in contents.items()})
    _save(work, state)
    for row in state["rows"]:  # what was done by hand since, as the repair of changes that cancel out asks for
        if row["status"] not in DROPPED and row["patch"] not in contents:
            row["status"] = EMPTY
        elif row["patch"] in contents and state["made"].get(row["patch"]) != changes(contents[row["patch"]]):
            row["status"] = EDITED if row["status"] != OWN else OWN
    report = _report(source, state["rows"], state["requirements"])
    known = source.existing.distributions if source.existing else {name: [] for name in package.distributions}
    distributions = {name: list(hashes) for name, hashes in known.items()}
    for name, digest in state["wheels"].items():
        distributions[name] = sorted({*distributions.get(name, []), digest})
    folder = work / ".git/rft-series" / source.name
    shutil.rmtree(folder, ignore_errors=True)
    carried = Package(folder, package.import_name, state["version"], distributions, contents, {})
    files = changed_files(work, carried)
    folder.mkdir(parents=True)
    kept = {key: report[key] for key in ("from", "series_id", "patches")}
    (folder / Carried.FILE).write_bytes(dump({"schema": 1} | kept))
    write_series(source.patches, carried, distributions, files)
    shutil.rmtree(work)
    return report


def _steps(source: Source, pristine: Tree, old: dict[str, bytes]) -> Iterator[Step]:
    """The patches of the old series in order, then those that only the new one has."""
    carried = source.carried(pristine)
    own = carried.own(source.package)
    tree: Tree = dict(old)
    for name, data in source.package.patches.items():
        header, (kept, before) = carried.header(name, data), carried.patch(name)
        if earlier := carried.row(name, data):
            step = Step(name, kept or data, before if kept else dict(tree), digests(data), earlier)
        else:
            step = Step(name, data, dict(tree), digests(data), None, carried.settled(name))
        yield replace(step, data=with_header(step.data, header))
        tree |= {diff.path: apply_diff(tree.get(diff.path), diff, name) for diff in parse_patch(data, name)}
    for name in own:
        data, before = carried.patch(name)
        yield Step(name, data, before, digests(data), {"status": OWN})


def _merge(step: Step, tree: Tree, pristine: Tree, files: Callable[[], dict[str, bytes]]) -> Merged:
    if step.earlier and step.earlier["status"] in DROPPED:
        return Merged(step.earlier["status"], {})
    diffs = parse_patch(step.data, step.name)
    merged = merge_patch(diffs, step.before, tree, pristine, step.name)
    for diff in diffs:
        if merged.notes.get(diff.path) == GONE and (place := _where(diff, files())):
            merged.notes[diff.path] += f", and most of its lines are in {place}"
    if step.settled:  # whatever the plain merge makes of it: it would undo what was done by hand
        merged.status, first = CONFLICT, diffs[0].path
        notes = [merged.notes.get(first), f"settled by hand before ({step.settled}), and the patch has changed since"]
        merged.notes[first] = "; ".join(note for note in notes if note)
    return merged


def _where(diff: FileDiff, files: dict[str, bytes]) -> str:
    """The file that has most of the lines around a change whose own file is gone; empty where none has half of them."""
    wanted = {line.strip() for hunk in diff.hunks for line in hunk.old if len(line.strip()) > 12}
    counts = {path: len(wanted & {line.strip() for line in data.split(b"\n")}) for path, data in files.items()}
    best = max(counts, key=counts.get, default="")
    return best if best and counts[best] * 2 >= max(len(wanted), 1) else ""


def _leave(work: Path, step: Step, merged: Merged) -> None:
    """Put a conflict where it can be edited: files with markers, and FILE.rej with what no file can take."""
    for diff in parse_patch(step.data, step.name):
        data, place = merged.files[diff.path], work / diff.path
        place.parent.mkdir(parents=True, exist_ok=True)
        if data is None:
            place.unlink(missing_ok=True)
        else:
            place.write_bytes(data)
        if merged.notes.get(diff.path, "").startswith((GONE, CHANGED)):
            place.with_name(f"{place.name}.rej").write_bytes(_part(step.data, diff.path))
    message = commit_message(header_text(step.data), step.name.removesuffix(".patch"))
    (work / ".git/rft-message").write_text(message)


def _part(data: bytes, path: str) -> bytes:
    """The part of a patch file that changes one path."""
    start = f"diff --git a/{path} b/{path}\n".encode()
    rest = data[data.index(start) :]
    end = rest.find(b"\ndiff --git ", 1)
    return rest if end < 0 else rest[: end + 1]


def _row(step: Step, merged: Merged, source: Source, version: str) -> dict:
    """What the report says of one patch."""
    row = {"patch": step.name, "status": merged.status} | step.digests
    same = step.earlier and merged.status == step.earlier["status"]
    if same or (step.earlier and merged.status not in (CONFLICT, *DROPPED)):
        return row | step.earlier | step.digests
    if merged.conflicts:
        row["conflicts"] = merged.conflicts
    if merged.notes:
        row["notes"] = merged.notes
    if specifier := due(header_text(step.data), [*source.package.distributions], version):
        row["remove_when"] = specifier
    return row


def _report(source: Source, rows: list[dict], requirements: dict) -> dict:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    return {
        "package": source.name,
        "from": source.package.name,
        "series_id": source.package.lock["series_id"],
        "counts": counts,
        "conflict_hunks": sum(sum(row.get("conflicts", {}).values()) for row in rows if row["status"] == CONFLICT),
        "requirements": requirements,
        "patches": rows,
        "left": len(source.package.patches.keys() - {row["patch"] for row in rows}),
    }


def _changed(before: list[str], after: list[str]) -> dict[str, list[str]]:
    return {"no longer": sorted({*before} - {*after}), "now": sorted({*after} - {*before})}


def _save(work: Path, state: dict) -> None:
    """Replaced whole, so that a kill leaves the state before or after."""
    (work / f"{REBASE}.new").write_bytes(dump(state))
    (work / f"{REBASE}.new").replace(work / REBASE)


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def _python(work: Path) -> list[Path]:
    return [path for path in sorted(work.rglob("*.py")) if ".git" not in path.relative_to(work).parts]
