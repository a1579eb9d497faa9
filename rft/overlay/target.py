"""The environment that gets patched: where its interpreter finds each package, and in what shape."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from . import probe
from .errors import REFUSED, USAGE, OverlayError
from .installer import pip_install
from .series import Package


@dataclass(frozen=True)
class Target:
    """An examined interpreter; `rft` is what it imports as rft: {"version", "file"}, or None."""

    python: str
    prefix: str
    version: str
    packages: dict[str, dict]
    rft: dict | None


@dataclass(frozen=True)
class Install:
    """One installed package. `refusal` is empty or one of NOT_INSTALLED, AMBIGUOUS, EDITABLE, WRONG_VERSION."""

    python: str
    refusal: str
    reason: str
    root: Path | None = None
    dist_info: str = ""
    name: str = ""
    version: str = ""
    known: str = ""  # of a refused one: the versions that there are patches for


def find_python(python: str | None, repository: Path) -> str:
    """Absolute path of the target: `python`, else the repository's .venv, else python3."""
    own = repository / ".venv/bin/python"
    name = python or (str(own) if own.exists() else "python3")
    found = shutil.which(name)
    if not found:
        raise OverlayError(USAGE, f"no such interpreter: {name}", wanted="an executable", repair="pass --python PATH")
    return os.path.abspath(found)


def examine_target(python: str | None, packages: list[Package], repository: Path, need_rft: bool) -> Target:
    """Probe the target; `python` None with the running interpreter as target costs no subprocess.

    The running process may have rft only because the tool was started from a checkout, so with `need_rft` the question
    is always put to a fresh interpreter.
    """
    path = find_python(python, repository)
    wanted: dict[str, list[str]] = {}
    for package in packages:
        wanted.setdefault(package.import_name, []).extend(package.distributions)
    if is_running(path) and not need_rft:
        document = probe.report(wanted, _own_paths()) | {"rft": None}
    else:
        document = _probe(path, wanted)
    return Target(path, document["prefix"], document["version"], document["packages"], document["rft"])


def is_running(path: str) -> bool:
    """Whether `path` is the interpreter of this process, in the same environment."""
    own = os.path.abspath(sys.executable)
    same_folder = os.path.realpath(os.path.dirname(path)) == os.path.realpath(os.path.dirname(own))
    return same_folder and os.path.realpath(path) == os.path.realpath(own)


def _own_paths() -> list[str]:
    """sys.path without the working directory that `python -m` puts first: it is not part of the environment."""
    paths = sys.path
    if not sys.flags.safe_path and paths and paths[0] in ("", os.getcwd()):
        paths = paths[1:]
    return [path for path in paths if path]


def _probe(path: str, wanted: dict) -> dict:
    source = Path(probe.__file__).read_text()
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [path, "-c", source, json.dumps(wanted)], capture_output=True, text=True, env=environment, cwd="/", check=False
    )
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("rft-probe "):
            return json.loads(line.removeprefix("rft-probe "))
    last = (done.stderr.strip() or "no output").splitlines()[-1]
    raise OverlayError(USAGE, f"{path} does not run", found=last, wanted="a Python interpreter", repair="pass --python")


def require_rft(target: Target, repository: Path, version: str) -> None:
    """Refuse (exit 3) a target that cannot import the rft whose hooks the patches call."""
    if target.rft and target.rft["version"] == version:
        return
    found = f"rft {target.rft['version']} at {target.rft['file']}" if target.rft else "rft cannot be imported there"
    raise OverlayError(
        REFUSED,
        f"the patches call rft.hooks, and {target.python} has no rft {version}",
        found=found,
        wanted=f"rft {version}",
        repair=f"{pip_install(target.python)} --no-deps -e {shlex.quote(str(repository))}",
    )


def resolve(target: Target, package: Package) -> Install:
    """Decide which installed distribution `package` patches, or why none can be patched."""
    found = target.packages[package.import_name]
    names = " or ".join(package.distributions)
    if not found["dists"]:
        reason = f"no {names} in {target.prefix}"
        if found["package"]:
            reason += f"; {found['package']}/{package.import_name} belongs to no distribution"
        return Install(target.python, "NOT_INSTALLED", reason)
    entry = found["dists"][0]["entry"]
    here = [dist for dist in found["dists"] if dist["entry"] == entry]
    dist = here[0]
    fields = {
        "root": Path(entry),
        "dist_info": dist["dist_info"],
        "name": dist["name"],
        "version": dist["version"],
    }
    refusal = reason = ""
    if len(here) > 1:
        listed = " and ".join(d["dist_info"] for d in here)
        refusal, reason = "AMBIGUOUS", f"{listed} in {entry}: uninstall all, install {package.version} once"
    elif dist["editable"]:
        refusal, reason = "EDITABLE", f"{dist['name']} {dist['version']} is an editable install: a source tree of yours"
    elif found["package"] is None:
        refusal, reason = "NOT_INSTALLED", f"{dist['dist_info']} is there, the folder {package.import_name}/ is not"
    elif found["package"] != entry:
        refusal = "AMBIGUOUS"
        reason = f"import finds {found['package']}/{package.import_name}, {dist['dist_info']} is in {entry}"
    elif dist["version"].split("+")[0] != package.version:
        refusal, reason = "WRONG_VERSION", f"{dist['name']} {dist['version']}, wanted {package.version}"
    return Install(target.python, refusal, reason, **fields)
