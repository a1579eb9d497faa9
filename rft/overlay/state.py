"""What is on disk, judged by hashes alone. Nothing here writes or takes a lock."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from pathlib import Path

from .series import Package, sha256, tree_id
from .target import Install

# Beside the patched packages: whatever can write or copy them can write or copy this, and two environments that share
# one site-packages share the lock.
STATE_DIR = ".rft-overlay"


@dataclass(frozen=True)
class FileState:
    """One file: state, sha256 on disk, the hashes the lock allows, and a note where the state needs one."""

    state: str
    found: str | None
    pristine: str | None
    patched: str | None
    note: str = ""


@dataclass(frozen=True)
class Inspection:
    """One package: its state, its files, the tree_id recomputed from disk, and the lock that was last applied."""

    package: Package
    install: Install
    state: str
    reason: str
    files: dict[str, FileState]
    tree_id: str
    applied: dict | None

    def summary(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state

    def document(self) -> dict:
        """The package as printed by --json."""
        return {
            "package": self.package.name,
            "import_name": self.package.import_name,
            "distribution": self.install.name or None,
            "version": self.install.version or None,
            "site_packages": str(self.install.root) if self.install.root else None,
            "state": self.state,
            "reason": self.reason,
            "series_id": self.package.lock["series_id"],
            "tree_id": self.tree_id or None,
            "wanted_tree_id": self.package.lock["tree_id"],
            "files": {
                path: {"state": file.state, "found": file.found, "pristine": file.pristine, "patched": file.patched}
                for path, file in self.files.items()
            },
        }


def read(root: Path, path: str) -> bytes | None:
    """Bytes of a file below `root`, through a symlinked file; None when it does not exist."""
    try:
        return (root / path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def symlinked_parent(root: Path, path: str) -> str:
    """The first parent folder of `path` that is a symlink: writing below it would leave the package. Empty if none."""
    place = root
    for part in Path(path).parent.parts:
        place = place / part
        if place.is_symlink():
            return str(place)
    return ""


def hard_links(root: Path, path: str) -> int:
    """Names of a file on its disk; 0 where there is no such file."""
    place = root / path
    return place.stat().st_nlink if place.is_file() else 0


def applied_path(import_name: str) -> str:
    """Where the lock that was last applied is kept, relative to site-packages."""
    return f"{STATE_DIR}/applied-{import_name}.json"


def applied_lock(package: Package, root: Path) -> dict | None:
    """The lock last applied to this version, if any."""
    data = read(root, applied_path(package.import_name))
    lock = json.loads(data) if data else None
    return lock if lock and lock["version"] == package.version else None


def judge(found: str | None, pristine: str | None, patched: str | None, older: dict | None) -> FileState:
    """State of one file. `older`: the file's row in the lock of an earlier series, recorded as applied."""
    if found == patched:
        state, note = "PATCHED", ""
    elif found == pristine:
        state, note = "PRISTINE", ""
    elif older and found == older["patched"]:
        state, note = "OUTDATED", "as an earlier series left it"
    elif found is None:
        state, note = "MISSING", ""
    elif pristine is None:
        state, note = "UNEXPECTED", "exists where a patch creates a file"
    else:
        state, note = "DRIFTED", ""
    return FileState(state, found, pristine, patched, note)


def inspect(package: Package, install: Install) -> Inspection:
    """Hash every file that the lock, or the lock last applied, knows."""
    if install.refusal:
        return Inspection(package, install, install.refusal, install.reason, {}, "", None)
    root = install.root
    applied = applied_lock(package, root)
    older = applied["files"] if applied else {}
    files: dict[str, FileState] = {}
    for path in sorted({**older, **package.files}):
        # A file that the present series no longer touches is wanted pristine.
        pristine = (package.files.get(path) or older[path])["pristine"]
        patched = package.files[path]["patched"] if path in package.files else pristine
        found = sha256(read(root, path))
        if found == pristine and path not in package.files:
            continue
        file = judge(found, pristine, patched, older.get(path))
        if file.state == "DRIFTED" and (links := hard_links(root, path)) > 1:
            file = replace(file, note=f"one of {links} hard links, so uv's cache may hold these bytes too")
        link = symlinked_parent(root, path)
        files[path] = FileState("DRIFTED", found, pristine, patched, f"{link} is a symlink") if link else file
    states = {file.state for file in files.values()}
    reason = ""
    if (root / STATE_DIR / "journal.json").exists():
        state, reason = "PARTIAL", "an apply or revert is running or was interrupted; `apply` or `revert` completes it"
    elif states <= {"PATCHED"}:
        state = "APPLIED"
    elif states <= {"PRISTINE"}:
        state = "CLEAN"
    elif states <= {"PATCHED", "PRISTINE", "OUTDATED"}:
        state, reason = "PARTIAL", "some files are patched and some are not; `apply` or `revert` completes it"
        if "OUTDATED" in states:
            reason = f"series {applied['series_id']} is applied, an earlier one; `apply` upgrades it"
    else:
        state = "DRIFTED"
        reason = f"{', '.join(p for p, f in files.items() if f.state in ('DRIFTED', 'MISSING', 'UNEXPECTED'))}"
    current = tree_id(package.import_name, package.version, {path: file.found for path, file in files.items()})
    return Inspection(package, install, state, reason, files, current, applied)


def record_rows(install: Install) -> dict[str, str | None]:
    """path -> sha256 as the installer recorded it in RECORD, None for rows without a hash."""
    return record_hashes((read(install.root, f"{install.dist_info}/RECORD") or b"").decode())


def record_hashes(record: str) -> dict[str, str | None]:
    """The same, of the text of a RECORD; a row that is none is left out."""
    rows: dict[str, str | None] = {}
    for line in record.splitlines():
        if line.count(",") < 2:
            continue
        path, digest, _size = line.rsplit(",", 2)
        value = digest.removeprefix("sha256=")
        rows[path] = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex() if value else None
    return rows


def drifted_outside(inspection: Inspection) -> list[str]:
    """Python files of the package that no patch touches and whose bytes are not those that RECORD lists."""
    root, package = inspection.install.root, inspection.package
    drifted = []
    known = {*package.files, *inspection.files}  # the latter: what an earlier series left, too
    for path, digest in record_rows(inspection.install).items():
        if path.startswith(f"{package.import_name}/") and path.endswith(".py") and path not in known:
            found = sha256(read(root, path))
            if digest and found and found != digest:
                drifted.append(path)
    return drifted
