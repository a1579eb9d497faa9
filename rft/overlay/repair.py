"""repair: give drifted files the bytes that upstream ships, and apply the series."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import rft

from .commands import Examined, transact
from .errors import NOT_WANTED, OverlayError
from .index import from_index
from .installer import OWN_UV, REPOSITORY, repair_command, uv
from .plan import BROKEN, change, plan_apply, pristine_bytes, require_install, require_no_link
from .series import sha256
from .state import Inspection, drifted_outside, hard_links, record_rows
from .target import require_rft
from .transaction import Change
from .wheels import wheel_files, wheel_name


def repair(examined: Examined, wait: float, wheels: list[Path]) -> tuple[Examined, list[Change], list[str]]:
    """Bring every package to APPLIED, whatever its files hold: the new state, the changes, and what else to know.

    Upstream's bytes are known by their sha256 (lock.json, RECORD). They come from the blobs of an earlier apply, from
    `wheels`, or from the package index; files are replaced, never written in place. All or nothing, as `apply` is.
    """
    for inspection in examined.inspections:
        require_install(inspection)
        require_no_link(inspection)
    require_rft(examined.target, REPOSITORY, rft.__version__)
    supply: dict[str, bytes] = {}
    notes = [note for inspection in examined.inspections for note in _links(inspection)]
    for inspection in examined.inspections:
        supply |= _fetched(inspection, _lacking(inspection), wheels)
    plan = partial(_plan, supply=supply)
    examined, changes = transact("repair", examined, plan, _is_whole, wait)
    return examined, changes, notes


def _is_whole(inspection: Inspection) -> bool:
    return inspection.state == "APPLIED" and not drifted_outside(inspection)


def _plan(inspection: Inspection, supply: dict[str, bytes]) -> tuple[list[Change], list[bytes]]:
    changes, keep = plan_apply(inspection, supply)
    rows = record_rows(inspection.install)
    for path in drifted_outside(inspection):
        if rows[path] not in supply:
            raise _gone(inspection, path, "it changed while the repair ran")
        changes.append(change(inspection, path, supply[rows[path]]))
    return changes, keep


def _lacking(inspection: Inspection) -> dict[str, str]:
    """path -> sha256 of files whose pristine bytes are not on this machine."""
    rows = record_rows(inspection.install)
    lacking = {path: rows[path] for path in drifted_outside(inspection)}
    for path, file in inspection.files.items():
        if file.state != "PATCHED" and file.pristine:
            try:
                pristine_bytes(inspection, path, file)
            except OverlayError:
                lacking[path] = file.pristine
    return lacking


def _fetched(inspection: Inspection, lacking: dict[str, str], wheels: list[Path]) -> dict[str, bytes]:
    """sha256 -> bytes of the files in `lacking`. Raises OverlayError (exit 1) where one is not to be had."""
    found: dict[str, bytes] = {}
    for wheel in wheels:
        if wheel_name(wheel)[0] == inspection.install.name:
            files = wheel_files(wheel, list(lacking))
            found |= {path: data for path, data in files.items() if sha256(data) == lacking[path]}
    rest = {path: digest for path, digest in lacking.items() if path not in found}
    message = ""
    if rest:
        more, message = from_index(inspection.install, rest)
        found |= more
    for path in lacking:
        if path not in found:
            raise _gone(inspection, path, message)
    return {lacking[path]: data for path, data in found.items()}


def _gone(inspection: Inspection, path: str, message: str) -> OverlayError:
    install = inspection.install
    return OverlayError(
        NOT_WANTED,
        f"{inspection.package.name}: upstream's bytes of {path} are not to be had; nothing was changed",
        found=message,
        wanted=f"the wheel of {install.name} {install.version}, from the package index or a file",
        repair=repair_command(install, " --wheel FILE.whl") + ", or again with a network",
    )


def _links(inspection: Inspection) -> list[str]:
    """What to do about other environments, where a drifted file is one of several hard links."""
    root, name = inspection.install.root, inspection.install.name
    drifted = [path for path, file in inspection.files.items() if file.state in BROKEN] + drifted_outside(inspection)
    linked = [path for path in drifted if hard_links(root, path) > 1]
    if not linked:
        return []
    rest = f" and {len(linked) - 1} more" if len(linked) > 1 else ""
    return [
        f"{linked[0]}{rest} had several names (hard links): uv's cache and the environments made from it may hold "
        f"the same bytes. Empty the cache (`{uv() or OWN_UV} cache clean {name}`), and run `repair` in each of them."
    ]
