"""The files of a package as the package index has them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from .installer import OWN_UV, REPOSITORY, uv
from .series import sha256
from .state import STATE_DIR, read
from .target import Install


def from_index(install: Install, wanted: dict[str, str]) -> tuple[dict[str, bytes], str]:
    """Files of the installed version by the package index, each only if it has the wanted sha256, and the last message.

    Installed into a folder aside: first from uv's cache, which costs no download; then without it, because an edit in
    place of a hard link has changed the cached file too. A locked version has to have its locked hash.

    Args:
        wanted: path in site-packages -> sha256.
    """
    program = uv()
    found: dict[str, bytes] = {}
    message = f"no uv on PATH or in {OWN_UV}"
    for source in (["--offline"], ["--no-cache"]) if program else ():
        (install.root / STATE_DIR).mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="index-", dir=install.root / STATE_DIR) as place:
            requirement = Path(place, "requirement.txt")
            requirement.write_text(locked_requirement(install.name, install.version))
            command = [program, "pip", "install", "--quiet", "--no-deps", "--link-mode", "copy", *source]
            command += ["--python", install.python, "--target", f"{place}/files", "-r", str(requirement)]
            if install.name == "openrlhf":  # Python alone, in a wheel that says x86-64: aarch64 takes it as such
                command += ["--python-platform", "x86_64-manylinux_2_35"]
            done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
            files = {path: read(Path(place, "files"), path) for path in wanted}
        found |= {path: data for path, data in files.items() if sha256(data) == wanted[path]}
        if len(found) == len(wanted):
            break
        message = " ".join(done.stderr.split())[:500] or "other bytes than RECORD and lock.json say"
    return found, message


def locked_requirement(name: str, version: str) -> str:
    """The line of requirements/*.txt that pins this version, with its hashes; without one, the version alone."""
    for lock in sorted((REPOSITORY / "requirements").glob("*.txt")):
        pin = rf"^{re.escape(name)}=={re.escape(version)} \\\n(?: +--hash=\S+(?: \\)?\n)+"
        if match := re.search(pin, lock.read_text() + "\n", re.MULTILINE):
            return match[0].rstrip(" \\\n") + "\n"
    return f"{name}=={version}\n"
