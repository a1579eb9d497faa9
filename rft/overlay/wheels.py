"""Wheels: whose they are, and the files in them by their path in site-packages."""

from __future__ import annotations

import zipfile
from pathlib import Path

from .errors import USAGE, OverlayError
from .series import sha256

# What an author reads or changes; binaries would only make the repository slow.
TEXT = {".py", ".pyi", ".json", ".jinja", ".txt", ".toml", ".yaml", ".yml", ".md", ".cfg", ".h", ".cu", ".cuh", ".sh"}


def wheel_name(wheel: Path) -> tuple[str, str]:
    """(distribution, public version) from a wheel's file name. Raises OverlayError (exit 2) for another file."""
    if not wheel.name.endswith(".whl") or not zipfile.is_zipfile(wheel):
        raise OverlayError(USAGE, f"{wheel} is not a wheel", wanted="a .whl file of the version that is patched")
    name, _, rest = wheel.name.removesuffix(".whl").partition("-")
    version = rest.split("-")[0]
    if not version:
        raise OverlayError(
            USAGE,
            f"{wheel} does not say what it is of",
            wanted="the name that the package index gives it: NAME-VERSION-….whl",
            repair="give the file its name again",
        )
    return name.replace("_", "-").lower(), version.split("+")[0]


def wheel_files(wheel: Path, paths: list[str]) -> dict[str, bytes]:
    """Content of members by their path in site-packages (some wheels put them below *.data/purelib/)."""
    result = {}
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            path = in_site(member)
            if path in paths:
                result[path] = archive.read(member)
    return result


def wheel_hashes(wheel: Path, paths: list[str]) -> dict[str, str]:
    """path -> sha256 of wheel members."""
    return {path: sha256(data) for path, data in wheel_files(wheel, paths).items()}


def in_site(member: str) -> str:
    """Where a member of a wheel is installed; some lie below NAME.data/purelib/."""
    return member.split(".data/purelib/")[-1].split(".data/platlib/")[-1]
