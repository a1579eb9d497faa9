"""Decide, from one inspection, which bytes apply or revert would write. Nothing here writes."""

from __future__ import annotations

import base64
import contextlib
import hashlib

from .errors import DOES_NOT_APPLY, NOT_WANTED, REFUSED, OverlayError
from .installer import install_command, repair_command
from .series import Package, dump, sha256
from .state import FileState, Inspection, applied_path, read, symlinked_parent
from .transaction import Change, blob

BROKEN = ("DRIFTED", "MISSING", "UNEXPECTED")


def require_install(inspection: Inspection) -> None:
    """Refuse (exit 3) a package that is not installed once, plainly, in the wanted version."""
    package, install = inspection.package, inspection.install
    if not install.refusal:
        return
    version = install.known or package.version
    repairs = {
        "EDITABLE": f"patch your source tree with git, or {install_command(install, package)}",
        "AMBIGUOUS": "uninstall every copy but one",
    }
    raise OverlayError(
        REFUSED,
        f"{package.name}: {install.refusal}",
        found=install.reason,
        wanted=f"one plain install of {' or '.join(package.distributions)} {version} in {install.python}",
        repair=repairs.get(install.refusal, install_command(install, package)),
    )


def require_no_link(inspection: Inspection) -> None:
    """Refuse symlinked folders (exit 3)."""
    package, install = inspection.package, inspection.install
    for path in inspection.files:
        link = symlinked_parent(install.root, path)
        if link:
            raise OverlayError(
                REFUSED,
                f"{package.name}: {link} is a symlink, so a change would reach every environment that shares it",
                wanted="real folders",
                repair=install_command(install, package, reinstall=True),
            )


def require_undrifted(inspection: Inspection) -> None:
    """Refuse files that are neither pristine nor as a known series left them (1), and symlinked folders (3)."""
    require_no_link(inspection)
    package, install = inspection.package, inspection.install
    for path, file in inspection.files.items():
        if file.state in BROKEN:
            rest = sum(other.state in BROKEN for other in inspection.files.values()) - 1
            raise OverlayError(
                NOT_WANTED,
                f"{package.name}: {path} is {file.state}" + (f" (and {rest} more)" if rest else ""),
                found=f"sha256 {file.found or 'none: no such file'}" + (f" ({file.note})" if file.note else ""),
                wanted=f"pristine {file.pristine or 'no such file'} or patched {file.patched or 'no such file'}",
                repair=repair_command(install),
            )


def pristine_bytes(
    inspection: Inspection, path: str, file: FileState, supply: dict[str, bytes] | None = None
) -> bytes | None:
    """Pristine content of a file: as installed, from the blob store, or by taking the series off. The hash decides.

    supply: sha256 -> bytes from elsewhere. Raises OverlayError (exit 1) when none yields the pristine hash.
    """
    package, root = inspection.package, inspection.install.root
    if file.pristine is None:
        return None
    current = read(root, path)
    if sha256(current) == file.pristine:
        return current
    stored = blob(root, file.pristine) or (supply or {}).get(file.pristine)
    if stored is not None:
        return stored
    if path in package.files and file.state == "PATCHED":
        with contextlib.suppress(OverlayError):  # patches changed since: the message below says what helps
            undone = package.unpatched(path, current)
            if sha256(undone) == file.pristine:
                return undone
    raise OverlayError(
        NOT_WANTED,
        f"{package.name}: the pristine bytes of {path} are gone",
        found=f"{file.state}, and no blob {file.pristine} in {root}",
        wanted="the file as upstream ships it",
        repair=repair_command(inspection.install),
    )


def stage(package: Package, path: str, pristine: bytes | None) -> bytes | None:
    """Apply the series to one file, require the locked hash, and compile Python (exit 4)."""
    result = package.patched(path, pristine)
    if sha256(result) != package.files[path]["patched"]:
        raise OverlayError(
            DOES_NOT_APPLY,
            f"{package.name}: the series gives {path} other bytes than lock.json says",
            found=str(sha256(result)),
            wanted=str(package.files[path]["patched"]),
            repair="git checkout -- patches, or write the lock again with `finish`",
        )
    if path.endswith(".py") and result is not None:
        try:
            compile(result, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise OverlayError(DOES_NOT_APPLY, f"{package.name}: patched {path} does not compile: {error}") from error
    return result


def plan_apply(inspection: Inspection, supply: dict[str, bytes] | None = None) -> tuple[list[Change], list[bytes]]:
    """Changes that bring the package to APPLIED, and the pristine bytes to keep for revert.

    supply: sha256 -> upstream's bytes, which `repair` has; without it a drifted file is refused.
    """
    if supply is None:
        require_undrifted(inspection)
    package = inspection.package
    if set(package.files) != set(package.diffs):
        raise OverlayError(
            DOES_NOT_APPLY,
            f"{package.name}: lock.json lists other files than the patches change",
            found=", ".join(sorted(set(package.files) ^ set(package.diffs))),
            repair="git checkout -- patches, or write the lock again with `finish`",
        )
    changes: list[Change] = []
    keep: list[bytes] = []
    for path, file in inspection.files.items():
        if file.state == "PATCHED":
            continue
        pristine = pristine_bytes(inspection, path, file, supply)
        after = stage(package, path, pristine) if path in package.files else pristine
        changes.append(change(inspection, path, after))
        if pristine is not None:
            keep.append(pristine)
    return changes + _bookkeeping(inspection, dump(package.lock)), keep


def plan_revert(inspection: Inspection) -> tuple[list[Change], list[bytes]]:
    """Changes that bring the package to CLEAN."""
    require_undrifted(inspection)
    changes = [
        change(inspection, path, pristine_bytes(inspection, path, file))
        for path, file in inspection.files.items()
        if file.found != file.pristine
    ]
    return changes + _bookkeeping(inspection, None), []


def change(inspection: Inspection, path: str, after: bytes | None) -> Change:
    """`path` goes from what is on disk to `after`."""
    install = inspection.install
    return Change(install.root, install.dist_info, path, read(install.root, path), after)


def _bookkeeping(inspection: Inspection, lock: bytes | None) -> list[Change]:
    """The record of what is applied, and RECORD rows for files that patches create: uninstall then removes them."""
    package, install = inspection.package, inspection.install
    older = inspection.applied["files"] if inspection.applied else {}
    created = {path for path, row in {**older, **package.files}.items() if row["pristine"] is None}
    changes = [change(inspection, applied_path(package.import_name), lock)]
    if created:
        path = f"{install.dist_info}/RECORD"
        record = read(install.root, path)
        if record is None:
            raise OverlayError(
                REFUSED,
                f"{package.name}: {install.dist_info} has no RECORD to list the new files in",
                wanted="an install by pip or uv",
                repair=install_command(install, package, reinstall=True),
            )
        wanted = [p for p in sorted(created) if p in package.files] if lock is not None else []
        rows = {p: package.patched(p, None) for p in wanted}
        changes.append(change(inspection, path, _record(record, created, rows)))
    return [made for made in changes if made.before != made.after]


def _record(record: bytes, remove: set[str], add: dict[str, bytes | None]) -> bytes:
    """RECORD without the rows of `remove` and with those of `add` put first, so that removal restores it exactly."""
    lines = record.split(b"\n")
    end = b"\r" if lines[0].endswith(b"\r") else b""
    starts = tuple(f"{path},".encode() for path in remove)
    kept = [line for line in lines if not line.startswith(starts)]
    rows = []
    for path, data in add.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data or b"").digest()).rstrip(b"=")
        rows.append(b"%s,sha256=%s,%d%s" % (path.encode(), digest, len(data or b""), end))
    return b"\n".join(rows + kept)
