"""A second checkout with a second environment whose OpenRLHF and vLLM lack some patches; nothing is installed twice.

The environment has copies of the patched files, symlinks to the rest of their packages, and the site-packages of the
running one behind them. The checkout is a copy whose series lacks the same patches, so that the launcher finds in it
what it verifies: a tree exactly as its own lock says. A PYTHONPATH in front of the one environment would not do: the
launcher refuses two copies of one package.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from leave_out import Tree, leave_out

from rft.overlay.commands import REPOSITORY, examine
from rft.overlay.plan import pristine_bytes
from rft.overlay.series import build_lock, dump, sha256
from rft.overlay.state import Inspection
from rft.record.environment import stack_name

COLLECT_SELDOM = "rft-collect-seldom.pth"  # of launch/setup.sh
SKIPPED = ("runs", "*.egg-info", "shared")


@cache
def inspections() -> list[Inspection]:
    return examine(sys.executable).inspections


SERIES = {inspection.package.import_name: inspection.package.name for inspection in inspections()}  # of those installed


def make_shadow(place: Path, out: dict[str, set[str]]) -> tuple[Path, list[str]]:
    """Make the checkout in the new folder `place`, without the patches `out` (package folder -> file names).

    Returns:
        `place`, and the patches that had to be left out as well (`package/file`).
    """
    _copy_checkout(place)
    _link_environment(place)
    also = change_shadow(place, out)
    _require_own_copies(place)
    return place, also


def change_shadow(place: Path, out: dict[str, set[str]]) -> list[str]:
    """Let a shadow lack the patches `out`, and no others; returns what had to be left out as well."""
    site, also = site_of(place), []
    for inspection in inspections():
        package = inspection.package
        names = out.get(package.name, set())
        tree = leave_out(package, pristine_files(inspection), names)
        for path, data in tree.files.items():
            _write(site / path, data)
        _write_series(place / "patches" / package.name, inspection, tree)
        also += [f"{package.name}/{patch}" for patch in tree.out - names]
    return sorted(also)


def site_of(place: Path) -> Path:
    """The packages of a shadow."""
    (site,) = place.glob(".venv/lib/*/site-packages")
    return site


def pristine_files(inspection: Inspection) -> dict[str, bytes | None]:
    package = inspection.package
    return {path: pristine_bytes(inspection, path, inspection.files[path]) for path in package.files}


def _write(path: Path, data: bytes | None) -> None:
    """The file, or none. Bytecode goes with what it was made of: Python tells two sources by second and size only."""
    if data is None:
        path.unlink(missing_ok=True)
    elif path.is_file() and path.read_bytes() == data:
        return
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        cached.unlink()


def _copy_checkout(place: Path) -> None:
    place.mkdir(parents=True)
    for entry in REPOSITORY.iterdir():
        if entry.name.startswith(".") or any(fnmatch(entry.name, pattern) for pattern in SKIPPED):
            continue
        if entry.is_dir():
            shutil.copytree(entry, place / entry.name)
        else:
            shutil.copy2(entry, place / entry.name)
    cache = REPOSITORY / ".cache"  # warm-started checkpoints: keyed by what decides them, a minute each
    cache.mkdir(exist_ok=True)
    (place / ".cache").symlink_to(cache)


def _write_series(folder: Path, inspection: Inspection, tree: Tree) -> None:
    """Series and lock without the left-out patches. The patch files stay as they are: nothing applies them here."""
    package = inspection.package
    kept = {name: data for name, data in package.patches.items() if name not in tree.out}
    for name in tree.out:
        (folder / name).unlink(missing_ok=True)
    for name, data in kept.items():
        if not (folder / name).exists():
            (folder / name).write_bytes(data)
    (folder / "series").write_text("".join(f"{name}\n" for name in kept))
    files = {
        path: {
            "pristine": package.files[path]["pristine"],
            "patched": sha256(data),
            "by": [name for name, _ in package.diffs[path] if name in kept],
        }
        for path, data in tree.files.items()
    }
    lock = build_lock(package.import_name, package.version, package.distributions, kept, files)
    (folder / "lock.json").write_bytes(dump(lock))


def _link_environment(place: Path) -> None:
    """An environment that has room for the patched packages only, in front of the site-packages of the one that runs.

    All else keeps its path: extensions compiled at run time are cached for every environment of a user, and compiled
    again when their include path changes.
    """
    prefix, environment = Path(sys.prefix), place / ".venv"
    (site,) = {inspection.install.root for inspection in inspections()}
    own = environment / site.relative_to(prefix.resolve())
    (environment / "bin").mkdir(parents=True)  # a real folder: an environment is where its interpreter lies
    for entry in os.scandir(prefix / "bin"):
        (environment / "bin" / entry.name).symlink_to(entry.path)
    shutil.copy2(prefix / "pyvenv.cfg", environment / "pyvenv.cfg")
    own.mkdir(parents=True)
    files = {path for inspection in inspections() for path in inspection.package.files}
    real = {str(parent) for path in files for parent in Path(path).parents}
    for inspection in inspections():
        name, metadata = inspection.package.import_name, inspection.install.dist_info
        _link(site / name, own / name, name, real, files)
        shutil.copytree(site / metadata, own / metadata)  # copied: an `apply` here must not reach the original
    (own / "rft-shadow.pth").write_text(f"{place}\n{site}\n")
    shutil.copy2(site / COLLECT_SELDOM, own / COLLECT_SELDOM)
    # What the launcher compares before it would install anything.
    stamp = '. launch/common.sh; setup_fingerprint >"$VENV/$STAMP"'
    subprocess.run(
        ["bash", "-c", stamp, "setup"], cwd=place, env=shadow_variables() | {"RFT_STACK": stack_name()}, check=True
    )


def _link(source: Path, target: Path, below: str, real: set[str], files: set[str]) -> None:
    """Mirror `source` in `target` by symlinks; folders in `real` are made, `files` are left out."""
    target.mkdir()
    for entry in os.scandir(source):
        path = f"{below}/{entry.name}"
        if path in files:
            continue
        if entry.name == "__pycache__":
            _link_bytecode(Path(entry.path), target / entry.name, below, files)
        elif path in real:
            _link(Path(entry.path), target / entry.name, path, real, files)
        else:
            (target / entry.name).symlink_to(entry.path)


def _link_bytecode(source: Path, target: Path, below: str, files: set[str]) -> None:
    """The cached bytecode of a real folder, but for the modules that differ here: both would write to one file."""
    target.mkdir()
    for entry in source.iterdir():
        if f"{below}/{entry.name.split('.')[0]}.py" not in files:
            (target / entry.name).symlink_to(entry)


def shadow_variables() -> dict[str, str]:
    """The environment without what points to the checkout and the pytest that run now."""
    foreign = ("PYTHONPATH", "VIRTUAL_ENV", "PYTEST_", "RAY_", "METRICS_LOG_DIR", "RFT_", "RUN_DIR", "DRY_RUN")
    return {k: v for k, v in os.environ.items() if not k.startswith(foreign)} | {"RFT_PATCHES_LEFT_OUT": "1"}


def _require_own_copies(place: Path) -> None:
    """The shadow's interpreter must find its own copies and, by them, the installed versions."""
    code = (
        "import importlib.metadata as m, importlib.util as u\n"
        "for n in ('openrlhf', 'vllm', 'rft'): print(u.find_spec(n).origin)\n"
        "print(m.version('openrlhf'), m.version('rft'))"
    )
    python = place / ".venv/bin/python"
    done = subprocess.run([python, "-c", code], cwd="/", env=shadow_variables(), capture_output=True, text=True)
    *origins, versions = done.stdout.splitlines()
    assert all(Path(origin).is_relative_to(place) for origin in origins), origins
    assert len(origins) == 3, done.stderr
    assert len(versions.split()) == 2, done.stderr
    assert importlib.util.find_spec("openrlhf").origin not in origins


def run_in_shadow(place: Path, command: list[str], timeout: float) -> subprocess.CompletedProcess:
    """Run a Python command in the shadow checkout; at the time limit everything that it started is ended."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    python = str(place / ".venv/bin/python")
    with subprocess.Popen(
        [python, *command], cwd=place, env=shadow_variables(), start_new_session=True, **pipes
    ) as process:
        try:
            out, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # the launcher is in this group, and stops what it started
            out, _ = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out)
