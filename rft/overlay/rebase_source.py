"""What a rebase starts from: the series to carry, upstream's bytes below it, and what an earlier rebase made of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .commands import REPOSITORY
from .diff import apply_diff, parse_patch
from .errors import NOT_WANTED, USAGE, OverlayError
from .merge import EMPTY, Tree
from .plan import pristine_bytes
from .series import Package, dump, load_packages, require_locked, sha256
from .state import inspect, read
from .target import examine_target, resolve
from .upstream import Release, find_release, requires_of
from .versions import order
from .wheels import wheel_name

RESOLVED = "resolved"  # a conflict, settled by hand
EDITED = "edited"  # changed by hand after it was carried
OWN = "own"  # of the new series alone
SETTLED = (RESOLVED, EDITED, EMPTY)


@dataclass(frozen=True)
class Carried:
    """The series of the new release as an earlier rebase has left it; without one, everything is empty."""

    FILE = "rebase.json"  # beside series and lock.json: the last report

    package: Package | None
    rows: dict[str, dict]
    before: dict[str, Tree]  # the tree that each of its patches was written for

    def row(self, name: str, data: bytes) -> dict | None:
        """What became of the patch `data`, if that was this very patch, or was settled and changes the same lines.

        The whole file tells more than the changed lines, also their places; but it differs whenever an earlier patch
        of the same file does, and that must not unsettle anything.
        """
        row = self.rows.get(name)
        if row and (row["sha256"] == sha256(data) or (self.settled(name) and row.get("changes") == changes(data))):
            return row
        return None

    def settled(self, name: str) -> str:
        """The state of a patch that was settled by hand; else empty."""
        status = self.rows.get(name, {}).get("status")
        return status if status in SETTLED else ""

    def header(self, name: str, data: bytes) -> bytes:
        """The header for the patch `data`: its own, unless it was edited in the new series."""
        kept, row = self.patch(name)[0], self.rows.get(name, {})
        return _header(kept if kept and sha256(_header(kept)) != row.get("header") else data)

    def patch(self, name: str) -> tuple[bytes | None, Tree]:
        """The patch as it was carried, and its tree; none for one that was dropped."""
        return (self.package.patches.get(name) if self.package else None), self.before.get(name, {})

    def own(self, old: Package) -> list[str]:
        """Patches that the new series alone has. Raises OverlayError (exit 1) where `old` has the name of one too."""
        told = {name for name, row in self.rows.items() if row["status"] != OWN}
        names = [name for name in (self.package.patches if self.package else {}) if name not in told]
        if taken := [name for name in names if name in old.patches]:
            raise OverlayError(
                NOT_WANTED,
                f"{self.package.name} and {old.name} each have a patch of their own with one name",
                found=", ".join(taken),
                wanted="another name, or one of the two",
                repair="bash apply_patches.sh edit, with another Patch-Name or without the commit",
            )
        return names


@dataclass(frozen=True)
class Source:
    """The series `package` to carry to `version`, in the folder `patches`/`name`; `existing` is what is there."""

    patches: Path
    package: Package
    version: str
    existing: Package | None
    command: str  # the command that asks for it, for messages

    @property
    def name(self) -> str:
        """Folder of the new series."""
        return (
            self.existing.name
            if self.existing
            else f"{self.package.name.removesuffix(self.package.version)}{self.version}"
        )

    @property
    def ids(self) -> list[str]:
        """By which a rebase that goes on knows that nothing has changed under it."""
        return [each.lock["series_id"] for each in (self.package, self.existing) if each]

    def all_patches(self) -> list[bytes]:
        return [*self.package.patches.values(), *(self.existing.patches.values() if self.existing else ())]

    def carried(self, pristine: Tree) -> Carried:
        """What the earlier rebase made of the series. Raises OverlayError (exit 1) if it had other upstream files."""
        report = (read_report(self.existing) if self.existing else None) or {"patches": []}
        rows = {row["patch"]: row for row in report["patches"]}
        return Carried(self.existing, rows, _trees(self.existing, pristine))


def read_report(package: Package) -> dict | None:
    """What the last rebase has left beside a series; None where none has made it.

    Raises OverlayError (exit 2) for a file that is not as `rebase` writes it.
    """
    file = package.folder / Carried.FILE
    if not file.is_file():
        return None
    try:
        report = json.loads(file.read_bytes())
        _ = report["from"], report["series_id"], [(r["patch"], r["status"], r["sha256"]) for r in report["patches"]]
    except (ValueError, KeyError, TypeError) as error:
        raise OverlayError(
            USAGE,
            f"{file} is malformed",
            found=f"{type(error).__name__}: {error}",
            wanted="the file as `rebase` writes it",
            repair=f"git checkout -- {file}",
        ) from error
    return report


def mark_edited(package: Package) -> None:
    """Say in rebase.json what was done by hand to the patches of a series that is about to be written.

    One that changes other lines than `rebase` made it is edited; one that was taken out is dropped, so that the next
    rebase does not bring it back, and is edited once it is put back. Of the series' own patches nothing is said: they
    are whatever is there.
    """
    report = read_report(package)
    if report is None:
        return
    report["patches"] = [row for row in report["patches"] if row["status"] != OWN or row["patch"] in package.patches]
    for row in report["patches"]:
        was, now = package.folder / row["patch"], package.patches.get(row["patch"])
        if row["status"] == OWN:
            continue
        if was.is_file() and now is None:
            row["status"] = EMPTY
        elif now is not None and not (was.is_file() and changes(was.read_bytes()) == changes(now)):
            row["status"] = EDITED
    (package.folder / Carried.FILE).write_bytes(dump(report))


def changes(data: bytes) -> str:
    """Digest of the lines that a patch takes away and adds, file by file, without their places."""
    marks = (b"+", b"-", b"\\", b"diff --git ", b"new file ", b"deleted file ")  # "\\ No newline at end of file"
    lines = data[len(_header(data)) :].split(b"\n")
    return sha256(b"\n".join(line for line in lines if line.startswith(marks)))


def digests(data: bytes) -> dict[str, str]:
    """What rebase.json keeps of a patch, by which a later rebase knows it again."""
    return {"sha256": sha256(data), "changes": changes(data), "header": sha256(_header(data))}


def with_header(data: bytes, header: bytes) -> bytes:
    """The patch file with another header."""
    return header + data[len(_header(data)) :]


def _header(data: bytes) -> bytes:
    return data[: (b"\n" + data).index(b"\ndiff --git ")]


def _trees(package: Package | None, pristine: Tree) -> dict[str, Tree]:
    """patch -> the tree before it."""
    if package is None:
        return {}
    for path, row in package.files.items():
        if sha256(pristine.get(path)) != row["pristine"]:
            raise OverlayError(
                NOT_WANTED,
                f"{package.name} was made from another {path} than this release has",
                found=str(sha256(pristine.get(path))),
                wanted=str(row["pristine"]),
                repair=f"pass the wheel of its lock.json with --wheel FILE, or begin anew: rm -r {package.folder}",
            )
    tree, result = dict(pristine), {}
    for name, data in package.patches.items():
        result[name] = dict(tree)
        tree |= {diff.path: apply_diff(tree.get(diff.path), diff, name) for diff in parse_patch(data, name)}
    return result


def find_source(patches: Path, selector: str, version: str, options: str = "") -> Source:
    """The series of the nearest older version, else of the nearest newer one; `selector` may name a folder.

    options: those by which messages are to name the command.

    Raises OverlayError (exit 2) where the series of this version is not one that a rebase has carried from that one.
    """
    found = load_packages(patches, [selector], strict=False)
    others = sorted((p for p in found if p.version != version), key=lambda p: order(p.version))
    if not others:
        raise OverlayError(
            USAGE,
            f"{found[0].name} is for {version} itself",
            wanted="another version",
            repair="change its patches with: bash apply_patches.sh edit",
        )
    older = [p for p in others if order(p.version) < order(version)]
    package = older[-1] if older else others[0]
    everything = load_packages(patches, [], strict=False)
    existing = next((p for p in everything if (p.import_name, p.version) == (package.import_name, version)), None)
    if existing:
        _require_carried(existing, package)
    for each in (package, existing):
        if each:
            require_locked(each)
    command = f".venv/bin/python -m rft.overlay rebase {selector} {version}{options}"
    return Source(patches, package, version, existing, command)


def _require_carried(existing: Package, package: Package) -> None:
    """Refuse (exit 2) to write over a series that no rebase has made, or one that was carried from another."""
    origin = (read_report(existing) or {}).get("from")
    if origin == package.name:
        return
    again = (
        f".venv/bin/python -m rft.overlay rebase {origin} {existing.version}, or begin anew: rm -r {existing.folder}"
    )
    raise OverlayError(
        USAGE,
        f"{existing.name} was not carried from {package.name}",
        found=f"carried from {origin}" if origin else f"no {Carried.FILE}: no rebase has made it",
        wanted=f"a series carried from {package.name}, or none",
        repair=again if origin else "change its patches with: bash apply_patches.sh edit",
    )


def old_release(source: Source, python: str | None, wheels: list[Path], names: list[str]) -> Release:
    """Upstream's bytes of the files that the old series changes: of `wheels`, the installation, or the index."""
    package = source.package
    release = None
    if not any(wheel_name(wheel)[1] == package.version for wheel in wheels):
        release = _installed(package, python)
    release = release or find_release(names, package.version, package.import_name, wheels)
    files = {}
    for path, row in package.files.items():
        data = release.files.get(path)
        if sha256(data) != row["pristine"]:
            raise OverlayError(
                NOT_WANTED,
                f"{package.name} was made from another {path} than {release.name} {release.version} has",
                found=str(sha256(data)),
                wanted=str(row["pristine"]),
                repair=f"pass the wheel of its lock.json with --wheel FILE ({package.version})",
            )
        if data is not None:
            files[path] = data
    return Release(release.name, release.version, files, release.requires, release.wheel)


def _installed(package: Package, python: str | None) -> Release | None:
    """From the target, patched or not; None where it has another version or has lost the bytes."""
    try:
        install = resolve(examine_target(python, [package], REPOSITORY, need_rft=False), package)
        if install.refusal:
            return None
        inspection = inspect(package, install)
        found = {path: pristine_bytes(inspection, path, inspection.files[path]) for path in package.files}
    except OverlayError:
        return None
    metadata = (read(install.root, f"{install.dist_info}/METADATA") or b"").decode(errors="replace").split("\n\n")[0]
    files = {path: data for path, data in found.items() if data is not None}
    return Release(install.name, package.version, files, requires_of(metadata))
