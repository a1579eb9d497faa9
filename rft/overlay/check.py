"""check: everything about the patches that can be wrong before anybody applies them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from . import ledger
from .commands import REPOSITORY, by_import_name, choose
from .diff import apply_diff, header_text, parse_patch
from .errors import OverlayError
from .headers import lint, lint_probes
from .plan import pristine_bytes, require_install, stage
from .rebase_source import read_report
from .series import Package, build_lock, default_patches, load_packages, require_locked, sha256
from .state import inspect, read, record_rows
from .target import Target, examine_target, resolve
from .transaction import blob
from .wheels import wheel_files, wheel_name

# Without these GNU patch and git would look at the environment, prompt, leave backups, or skip files of a checkout.
ENGINES = {
    "git apply": ["git", "apply", "-p1", "--whitespace=nowarn"],
    "patch -F0": ["patch", "-p1", "-F0", "--binary", "--silent", "--force", "--no-backup-if-mismatch", "-i"],
}


def check(
    python: str | None, patches: Path | None, selectors: list[str], wheels: list[Path]
) -> tuple[list[str], list[str]]:
    """Problems found in headers, series, locks and ledger, one line each; empty when all is well. And notes.

    Pristine bytes come from `wheels`, else from the target, patched or not. Raises OverlayError (exit 3) where neither
    has them; of several series of one package, those for other versions than the installed one are read, not applied,
    which a note says.
    """
    patches = patches or default_patches()
    packages = load_packages(patches, selectors, strict=False)
    target = examine_target(python, packages, REPOSITORY, need_rft=False)
    problems: list[str] = []
    notes: list[str] = []
    for series in by_import_name(packages):
        chosen, _ = choose(target, series)
        for package in series:
            elsewhere = package is not chosen and not _wheel(package, wheels)
            found = _check_read(package) + _locked(package) if elsewhere else _check_package(package, target, wheels)
            problems += [f"{package.name}: {problem}" for problem in found]
            if elsewhere:
                notes.append(f"{package.name}: not applied, {package.version} is not installed here (--wheel FILE)")
            notes += [f"{package.name}: {note}" for note in _behind(package, series)]
    ledger_path = patches / "README.md"
    everything = load_packages(patches, [], strict=False)
    try:
        if not ledger_path.exists() or ledger_path.read_text() != ledger.render(everything):
            problems.append(f"{ledger_path.name} is stale: bash apply_patches.sh finish DIR writes it")
    except OverlayError as error:  # a malformed patch, already listed above
        problems.append(f"{ledger_path.name} cannot be compared: {error.what}")
    return problems, notes


def _check_read(package: Package) -> list[str]:
    """Problems that show without upstream's bytes."""
    problems: list[str] = []
    for path in sorted(package.folder.glob("*.patch")):
        if path.name not in package.patches:
            problems.append(f"{path.name} is not in the series")
    for name, data in package.patches.items():
        header = header_text(data)
        problems += [f"{name}: {problem}" for problem in lint(header) + lint_probes(header, REPOSITORY)]
    return problems


def _locked(package: Package) -> list[str]:
    try:
        require_locked(package)
    except OverlayError as error:
        return [str(error)]
    return []


def _behind(package: Package, series: list[Package]) -> list[str]:
    """Whether the series that this one was carried from has changed since (rebase.json)."""
    report = read_report(package) or {}
    source = next((each for each in series if each.name == report.get("from")), None)
    if source is None or source.lock["series_id"] == report["series_id"]:
        return []
    again = f".venv/bin/python -m rft.overlay rebase {package.import_name} {package.version}"
    return [f"{source.name} has changed since it was carried here: {again}"]


def _check_package(package: Package, target: Target, wheels: list[Path]) -> list[str]:
    problems = _check_read(package)
    try:
        pristine = _pristine(package, target, wheels)
        patched = {path: package.patched(path, data) for path, data in pristine.items()}
        problems += _check_lock(package, pristine, patched)
        problems += [problem for name in ENGINES for problem in _check_engine(name, package, pristine)]
    except OverlayError as error:
        if error.code == 3:
            raise
        problems.append(str(error))
    return problems


def _pristine(package: Package, target: Target, wheels: list[Path]) -> dict[str, bytes | None]:
    """Upstream's bytes of every file that the series touches, None for those it creates."""
    paths = list(package.diffs)
    if wheel := _wheel(package, wheels):
        files = wheel_files(wheel, paths)
        return {path: files.get(path) for path in paths}
    install = resolve(target, package)
    inspection = inspect(package, install)
    require_install(inspection)
    rows = record_rows(install)
    result: dict[str, bytes | None] = {}
    for path in paths:
        if path in package.files:
            result[path] = pristine_bytes(inspection, path, inspection.files[path])
        elif rows.get(path):
            current = read(install.root, path)
            result[path] = current if sha256(current) == rows[path] else blob(install.root, rows[path])
        else:
            result[path] = None
    return result


def _wheel(package: Package, wheels: list[Path]) -> Path | None:
    """The wheel that the series is for; a single one of another version is an error that the hashes show."""
    mine = [wheel for wheel in wheels if wheel_name(wheel)[0] in package.distributions]
    return next((w for w in mine if wheel_name(w)[1] == package.version), mine[0] if len(mine) == 1 else None)


def _check_lock(package: Package, pristine: dict, patched: dict) -> list[str]:
    files = {
        path: {
            "pristine": sha256(pristine[path]),
            "patched": sha256(patched[path]),
            "by": [name for name, _ in package.diffs[path]],
        }
        for path in pristine
    }
    wanted = build_lock(package.import_name, package.version, package.distributions, package.patches, files)
    stale = [key for key in wanted if wanted[key] != package.lock.get(key)]
    if stale:
        return [f"lock.json is stale in {', '.join(stale)}: bash apply_patches.sh finish DIR writes it"]
    for path in files:
        stage(package, path, pristine[path])  # raises when the result does not compile
    return []


def _check_engine(name: str, package: Package, pristine: dict[str, bytes | None]) -> list[str]:
    """Apply patch by patch with another program, and compare with the strict applier's bytes."""
    command = ENGINES[name]
    if not shutil.which(command[0]):
        return []
    ours = dict(pristine)
    with tempfile.TemporaryDirectory(prefix="rft-check-") as folder:
        root = Path(folder).resolve()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") and k != "POSIXLY_CORRECT"}
        environment |= {"LC_ALL": "C", "GIT_CEILING_DIRECTORIES": str(root.parent), "GIT_CONFIG_GLOBAL": os.devnull}
        for path, data in pristine.items():
            if data is not None:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(data)
        for patch, data in package.patches.items():
            done = subprocess.run(
                [*command, str((package.folder / patch).resolve())],
                cwd=root,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                return [f"{patch}: {name} fails: {(done.stderr or done.stdout).strip()}"]
            for diff in parse_patch(data, patch):
                ours[diff.path] = apply_diff(ours[diff.path], diff, patch)
                if read(root, diff.path) != ours[diff.path]:
                    return [f"{patch}: {name} gives other bytes in {diff.path}"]
    return []
