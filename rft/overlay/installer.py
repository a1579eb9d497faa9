"""uv and pip, as the commands that repairs print name them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .series import Package
    from .target import Install

REPOSITORY = Path(__file__).resolve().parents[2]
OWN_UV = ".tools/uv/bin/uv"  # where set-up puts one when there is none on PATH


def uv() -> str | None:
    """uv as a shell in the repository's folder finds it, or None."""
    if shutil.which("uv"):
        return "uv"
    return OWN_UV if os.access(REPOSITORY / OWN_UV, os.X_OK) else None


def pip_install(python: str = sys.executable) -> str:
    """`… pip install` into the environment of `python`, for a shell in the repository's folder."""
    python = shlex.quote(python.removeprefix(f"{REPOSITORY}/"))
    program = uv()
    return f"{program} pip install --python {python}" if program else f"{python} -m pip install"


def install_command(install: Install, package: Package, reinstall: bool = False) -> str:
    """The command that brings the version of `package` into the target, or each file of the installed one again.

    The latter as a copy, since a hard link would share its bytes with uv's cache.
    """
    name = install.name or next(iter(package.distributions))
    start = pip_install(install.python)
    if not reinstall:
        return f"{start} {name}=={package.version}"
    options = "--force-reinstall --no-deps" + ("" if " -m pip " in start else " --no-cache --link-mode copy")
    return f"{start} {options} {name}=={install.version}"


def repair_command(install: Install, more: str = "") -> str:
    """`bash apply_patches.sh repair` for this target."""
    own = REPOSITORY / ".venv/bin"
    mine = os.path.realpath(own) == os.path.realpath(os.path.dirname(install.python))
    python = "" if mine else f" --python {shlex.quote(install.python)}"
    return f"bash apply_patches.sh repair{python}{more}"
