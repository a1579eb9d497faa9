"""The versioned side of the overlay: `patches/<dist>-<version>/` with series, lock.json and *.patch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from .diff import FileDiff, apply_diff, parse_patch, reverse
from .errors import DOES_NOT_APPLY, USAGE, OverlayError
from .versions import order

SCHEMA = 1


def sha256(data: bytes | None) -> str | None:
    """Hex digest, or None for a file that does not exist."""
    return None if data is None else hashlib.sha256(data).hexdigest()


def short_id(rows: list[str]) -> str:
    """First 16 hex digits of the sha256 over lines."""
    return hashlib.sha256("".join(row + "\n" for row in rows).encode()).hexdigest()[:16]


def tree_id(import_name: str, version: str, files: dict[str, str | None]) -> str:
    """Fingerprint of resulting files: path -> sha256, None where the file does not exist.

    Independent of how the patches are split, named or worded.
    """
    return short_id([f"{import_name} {version}", *(f"{path} {sha or '-'}" for path, sha in sorted(files.items()))])


@dataclass(frozen=True)
class Package:
    """One package folder. `files` maps a path in site-packages to its pristine and patched sha256 (None: absent)."""

    folder: Path
    import_name: str
    version: str
    distributions: dict[str, list[str]]
    patches: dict[str, bytes]
    lock: dict = field(repr=False)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def files(self) -> dict[str, dict]:
        return self.lock["files"]

    @cached_property
    def diffs(self) -> dict[str, list[tuple[str, FileDiff]]]:
        """path -> (patch name, its diff) in series order."""
        result: dict[str, list[tuple[str, FileDiff]]] = {}
        for name, data in self.patches.items():
            for diff in parse_patch(data, name):
                if diff.path.split("/")[0] != self.import_name or "/" not in diff.path:
                    raise OverlayError(
                        DOES_NOT_APPLY, f"{name} changes {diff.path}, which is outside {self.import_name}/"
                    )
                result.setdefault(diff.path, []).append((name, diff))
        return result

    def patched(self, path: str, pristine: bytes | None) -> bytes | None:
        """Apply the series to one file."""
        for name, diff in self.diffs.get(path, ()):
            pristine = apply_diff(pristine, diff, name)
        return pristine

    def unpatched(self, path: str, patched: bytes | None) -> bytes | None:
        """Take the series off one file. The caller compares the result's hash with the lock."""
        for name, diff in reversed(self.diffs.get(path, [])):
            patched = apply_diff(patched, reverse(diff), name)
        return patched


def read_series(folder: Path) -> list[str]:
    """Patch names in order: one a line, `#` starts a comment (quilt's format)."""
    lines = (line.split("#")[0].strip() for line in (folder / "series").read_text().splitlines())
    return [line for line in lines if line]


def build_lock(
    import_name: str,
    version: str,
    distributions: dict[str, list[str]],
    patches: dict[str, bytes],
    files: dict[str, dict],
) -> dict:
    """The content of lock.json."""
    rows = [{"file": name, "sha256": sha256(data)} for name, data in patches.items()]
    return {
        "schema": SCHEMA,
        "import_name": import_name,
        "version": version,
        "distributions": distributions,
        "patches": rows,
        "files": dict(sorted(files.items())),
        "series_id": short_id([f"{row['file']} {row['sha256']}" for row in rows]),
        "tree_id": tree_id(import_name, version, {path: row["patched"] for path, row in files.items()}),
    }


def dump(document: dict) -> bytes:
    """The one JSON layout of every file the overlay writes."""
    return (json.dumps(document, indent=1) + "\n").encode()


def default_patches() -> Path:
    """`patches/` beside the rft package: the repository's own."""
    return Path(__file__).resolve().parents[2] / "patches"


def load_packages(patches: Path, selectors: list[str], strict: bool = True) -> list[Package]:
    """Read the package folders that the selectors name (folder, import or distribution name; none: all).

    With `strict`, a series that lock.json does not describe is refused (exit 4); `check` and `finish` look themselves.
    Raises OverlayError (exit 2) when there is nothing to patch: an empty overlay is a mistake, never a success.
    """
    folders = sorted(path.parent for path in patches.glob("*/lock.json")) if patches.is_dir() else []
    packages = [load_package(folder, strict=False) for folder in folders]
    packages.sort(key=lambda p: (p.name.removesuffix(p.version), order(p.version)))
    unlocked = sorted(path.parent.name for path in patches.glob("*/series") if not (path.parent / "lock.json").exists())
    if unlocked and not (selectors and not set(selectors) & set(unlocked)):
        raise OverlayError(
            USAGE, f"{patches / unlocked[0]} has no lock.json", repair="bash apply_patches.sh finish DIR"
        )
    if not packages:
        raise OverlayError(
            USAGE,
            "no patches found",
            found=f"no */lock.json in {patches}",
            wanted="folders such as openrlhf-0.9.3",
            repair="pass --patches DIR",
        )
    chosen = [p for p in packages if not selectors or {p.name, p.import_name, *p.distributions} & set(selectors)]
    known = {name for p in packages for name in (p.name, p.import_name, *p.distributions)}
    unknown = [name for name in selectors if name not in known]
    if unknown:
        raise OverlayError(USAGE, f"no patches for {', '.join(unknown)}", wanted=f"one of {', '.join(sorted(known))}")
    if strict:
        for package in chosen:
            require_locked(package)
    return chosen


def load_package(folder: Path, strict: bool = True) -> Package:
    """Read one package folder; see `load_packages`."""
    try:
        lock = json.loads((folder / "lock.json").read_bytes())
        if lock["schema"] != SCHEMA:
            raise OverlayError(USAGE, f"{folder / 'lock.json'} has schema {lock['schema']}", wanted=str(SCHEMA))
        package = Package(
            folder=folder,
            import_name=lock["import_name"],
            version=lock["version"],
            distributions=lock["distributions"],
            patches={name: (folder / name).read_bytes() for name in read_series(folder)},
            lock=lock,
        )
        _ = [(row["pristine"], row["patched"]) for row in lock["files"].values()], lock["patches"], lock["tree_id"]
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise OverlayError(
            USAGE,
            f"{folder / 'lock.json'} is malformed",
            found=f"{type(error).__name__}: {error}",
            wanted="the file as `finish` writes it",
            repair=f"git checkout -- {folder / 'lock.json'}",
        ) from error
    except FileNotFoundError as error:
        raise OverlayError(
            USAGE,
            f"{folder.name}: the series names a file that is missing",
            found=f"no {error.filename}",
            repair="restore it, or run `bash apply_patches.sh finish DIR`",
        ) from error
    if not package.patches:
        raise OverlayError(
            USAGE, f"{folder / 'series'} names no patch", wanted="at least one", repair=f"rm -r {folder}"
        )
    if strict:
        require_locked(package)
    return package


def require_locked(package: Package) -> None:
    """Refuse (exit 4) a lock.json that does not describe exactly these patch contents, or that is inconsistent."""
    lock = package.lock
    wanted = build_lock(package.import_name, package.version, package.distributions, package.patches, package.files)
    if wanted == lock:
        return
    rows = {(row["file"], row["sha256"]) for side in (wanted, lock) for row in side["patches"]}
    both = {(row["file"], row["sha256"]) for row in wanted["patches"] if row in lock["patches"]}
    changed = sorted({name for name, _ in rows - both}) or [key for key in wanted if wanted[key] != lock.get(key)]
    raise OverlayError(
        DOES_NOT_APPLY,
        f"{package.name}: lock.json does not describe these patches",
        found=f"changed since: {', '.join(changed)}",
        wanted="a lock written after the last change",
        repair="change patches with `bash apply_patches.sh edit` and `finish`, which write the lock",
    )
