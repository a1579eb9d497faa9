"""status, verify, apply and revert."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import rft

from .errors import NOT_WANTED, USAGE, OverlayError
from .installer import REPOSITORY, install_command, repair_command
from .plan import plan_apply, plan_revert, require_install
from .series import Package, default_patches, load_packages
from .state import Inspection, drifted_outside, inspect
from .target import Install, Target, examine_target, require_rft, resolve
from .transaction import Change, commit, locked, recover


@dataclass(frozen=True)
class Examined:
    """A target with one inspection per package."""

    target: Target
    inspections: list[Inspection]

    @property
    def roots(self) -> list[Path]:
        return sorted({inspection.install.root for inspection in self.inspections})

    def again(self) -> Examined:
        """The same packages, hashed once more."""
        return Examined(self.target, [inspect(i.package, i.install) for i in self.inspections])

    def document(self) -> dict:
        """What --json prints."""
        ok = all(inspection.state == "APPLIED" for inspection in self.inspections)
        return {
            "ok": ok,
            "python": self.target.python,
            "packages": [inspection.document() for inspection in self.inspections],
        }


def examine(
    python: str | None = None,
    patches: Path | None = None,
    selectors: list[str] | None = None,
    need_rft: bool = False,
) -> Examined:
    """Look at every selected package in the target. Reads only."""
    packages = load_packages(patches or default_patches(), selectors or [])
    target = examine_target(python, packages, REPOSITORY, need_rft)
    return Examined(target, [inspect(*choose(target, series)) for series in by_import_name(packages)])


def by_import_name(packages: list[Package]) -> list[list[Package]]:
    """The series of each package, for several versions side by side."""
    names = dict.fromkeys(package.import_name for package in packages)
    return [[package for package in packages if package.import_name == name] for name in names]


def choose(target: Target, series: list[Package]) -> tuple[Package, Install]:
    """Of several series of one package, the one for the installed version; the first, refused, where none is."""
    installs = [resolve(target, package) for package in series]
    fitting = [n for n, install in enumerate(installs) if install.refusal != "WRONG_VERSION"]
    package, install = series[fitting[0] if fitting else 0], installs[fitting[0] if fitting else 0]
    if install.refusal and len(series) > 1:
        known = " or ".join(each.version for each in series)
        reason = install.reason.replace(f"wanted {package.version}", f"wanted {known}")
        install = replace(install, known=known, reason=reason)
    return package, install


def verify(examined: Examined, expect: list[str]) -> None:
    """Raise OverlayError (exit 1) unless every package is exactly APPLIED and has the expected tree_id.

    expect: `ID` where one package is examined, else `NAME=ID`. Files that no patch touches are compared with RECORD.
    """
    wanted = expected(expect, [inspection.package for inspection in examined.inspections])
    for inspection in examined.inspections:
        package = inspection.package
        if inspection.state != "APPLIED":
            repair = "bash apply_patches.sh"
            if inspection.state == "DRIFTED":
                repair = repair_command(inspection.install)
            elif inspection.install.refusal:
                repair = install_command(inspection.install, package) + " && " + repair
            raise OverlayError(
                NOT_WANTED,
                f"{package.name} is not applied",
                found=inspection.summary(),
                wanted=f"APPLIED, tree_id {package.lock['tree_id']}",
                repair=repair,
            )
        outside = drifted_outside(inspection)
        if outside:
            raise OverlayError(
                NOT_WANTED,
                f"{package.name}: {outside[0]} is DRIFTED, and no patch touches it",
                found=f"{len(outside)} such files: {', '.join(outside[:5])}",
                wanted="the bytes that RECORD lists",
                repair=repair_command(inspection.install),
            )
        if wanted.get(package.name, inspection.tree_id) != inspection.tree_id:
            raise OverlayError(
                NOT_WANTED,
                f"{package.name} has another tree_id than expected",
                found=inspection.tree_id,
                wanted=wanted[package.name],
                repair="check out the commit whose patches have that tree_id, then bash apply_patches.sh",
            )


def expected(expect: list[str], packages: list[Package]) -> dict[str, str]:
    """Parse --expect into package folder -> tree_id."""
    result = {}
    for item in expect:
        name, _, value = item.rpartition("=")
        named = [p for p in packages if name in (p.name, p.import_name, *p.distributions)] if name else packages
        if len(named) != 1:
            raise OverlayError(
                USAGE,
                f"--expect {item} does not name one package",
                wanted="ID for a single package, else NAME=ID",
                repair=f"bash apply_patches.sh verify --expect {packages[0].import_name}={value}",
            )
        result[named[0].name] = value
    return result


def apply(examined: Examined, wait: float, dry_run: bool = False) -> tuple[Examined, list[Change]]:
    """Bring every package to APPLIED, all or none. Returns the new state and the changes made (or to be made)."""
    for inspection in examined.inspections:
        require_install(inspection)
    require_rft(examined.target, REPOSITORY, rft.__version__)
    return transact("apply", examined, plan_apply, lambda each: each.state == "APPLIED", wait, dry_run)


def revert(examined: Examined, wait: float, dry_run: bool = False) -> tuple[Examined, list[Change]]:
    """Bring every package back to the bytes that upstream ships, all or none."""
    for inspection in examined.inspections:
        require_install(inspection)
    return transact("revert", examined, plan_revert, lambda each: each.state == "CLEAN", wait, dry_run)


def transact(
    operation: str,
    examined: Examined,
    plan: Callable[[Inspection], tuple[list[Change], list[bytes]]],
    done: Callable[[Inspection], bool],
    wait: float,
    dry_run: bool = False,
) -> tuple[Examined, list[Change]]:
    """Under the lock, make what `plan` says of each package that is not `done` by then, all or none."""
    if all(done(inspection) for inspection in examined.inspections):
        return examined, []  # no lock and no write: works in a read-only image
    if dry_run:
        return examined, [change for inspection in examined.inspections for change in plan(inspection)[0]]
    with locked(examined.roots, wait):
        for root in examined.roots:
            recover(root)
        examined = examined.again()
        plans = [plan(inspection) for inspection in examined.inspections if not done(inspection)]
        changes = [change for made, _ in plans for change in made]
        if changes:
            commit(changes, [data for _, keep in plans for data in keep], operation)
        return examined.again(), changes
