"""The text files of one release of a package: from a wheel, an installation, or the package index."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from .diff import PLAIN_PATH
from .errors import REFUSED, OverlayError
from .installer import REPOSITORY, uv
from .series import sha256
from .state import record_hashes
from .wheels import TEXT, in_site, wheel_name

MOST_BYTES = 1 << 28  # of text in one package; vLLM has 30 MB


@dataclass(frozen=True)
class Release:
    """One release: `files` maps a path in site-packages to its bytes, `requires` are its Requires-Dist lines."""

    name: str
    version: str
    files: dict[str, bytes]
    requires: list[str]
    wheel: Path | None = None


def find_release(names: list[str], version: str, import_name: str, wheels: list[Path]) -> Release:
    """A release by its version: the first of `wheels` that holds it, else from the package index.

    names: distributions that provide the package, the one to ask the index for first. version: empty for the newest.
    Raises OverlayError (exit 3) for a release that is not to be had, or whose bytes are not as its RECORD lists them.
    """
    for wheel in wheels:
        name, found = wheel_name(wheel)
        if name in names and found == (version or found):
            return _from_wheel(wheel, name, found, import_name)
    return _from_index(names[0], version, import_name)


def _from_wheel(wheel: Path, name: str, version: str, import_name: str) -> Release:
    members: dict[str, zipfile.ZipInfo] = {}
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            path = in_site(info.filename)
            if path.startswith("/") or ".." in path.split("/"):
                raise _refused(wheel.name, f"member {info.filename!r}", "paths below site-packages")
            if not _wanted(path, import_name):
                continue
            if path in members:
                raise _refused(wheel.name, f"two members {info.filename!r}", "each file once")
            members[path] = info
        size = sum(info.file_size for info in members.values())
        if size > MOST_BYTES:
            raise _refused(wheel.name, f"{size} bytes of text", f"at most {MOST_BYTES}")
        try:
            files = {path: archive.read(info) for path, info in members.items()}
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
            raise _refused(wheel.name, str(error), "a wheel that can be read") from error
    return _checked(wheel.name, name, version, import_name, files, wheel)


def _wanted(path: str, import_name: str) -> bool:
    """A text file of the package whose path a patch may name, or one of the two files of metadata that are read."""
    if path.endswith((".dist-info/RECORD", ".dist-info/METADATA")) and path.count("/") == 1:
        return True
    return path.startswith(f"{import_name}/") and Path(path).suffix in TEXT and bool(PLAIN_PATH.fullmatch(path))


def _checked(
    where: str, name: str, version: str, import_name: str, found: dict[str, bytes], wheel: Path | None = None
) -> Release:
    """The release, after a look at name, version and hashes: a file that RECORD does not list is nobody's."""
    metadata = [data for path, data in found.items() if path.endswith("/METADATA")]
    records = [data for path, data in found.items() if path.endswith("/RECORD")]
    files = {path: data for path, data in found.items() if path.startswith(f"{import_name}/")}
    if len(metadata) != 1 or len(records) != 1:
        raise _refused(where, f"{len(metadata)} METADATA and {len(records)} RECORD", "one of each")
    head = metadata[0].decode(errors="replace").split("\n\n")[0]
    fields = dict(re.findall(r"(?m)^(Name|Version):\s*(\S+)", head))
    given = (re.sub(r"[-_.]+", "-", fields.get("Name", "")).lower(), fields.get("Version", "").split("+")[0])
    if given != (name, version or given[1]):
        raise _refused(where, " ".join(given), f"{name} {version}")
    if f"{import_name}/__init__.py" not in files:
        raise _refused(where, f"no {import_name}/__init__.py", f"the package {import_name}")
    try:
        rows = {in_site(path): digest for path, digest in record_hashes(records[0].decode()).items()}
    except ValueError as error:
        raise _refused(where, f"a RECORD that cannot be read: {error}", "as installers write it") from error
    for path, data in files.items():
        if rows.get(path) != sha256(data):
            raise _refused(where, f"{path} is not what its RECORD lists", str(rows.get(path)))
    return Release(name, given[1], files, requires_of(head), wheel)


def requires_of(head: str) -> list[str]:
    """The Requires-Dist lines of a METADATA file."""
    mark = "Requires-Dist: "
    return [line.removeprefix(mark) for line in head.splitlines() if line.startswith(mark)]


def _refused(where: str, found: str, wanted: str) -> OverlayError:
    repair = "take the wheel from the package index again, or pass another one with --wheel FILE"
    return OverlayError(REFUSED, f"{where} is no release to build on", found=found, wanted=wanted, repair=repair)


def _from_index(name: str, version: str, import_name: str) -> Release:
    """Installed into a folder aside, by uv or pip with the user's own settings; nothing of it is run."""
    requirement = f"{name}=={version}" if version else name
    program = uv()
    with tempfile.TemporaryDirectory(prefix="rft-release-") as place:
        if program:
            command = [
                program,
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--link-mode",
                "copy",
                "--only-binary",
                ":all:",
            ]
            command += ["--python", sys.executable, "--target", place, requirement]
        else:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
            command += ["--only-binary", ":all:", "--target", place, requirement]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OverlayError(
                REFUSED,
                f"{requirement} is not to be had",
                found=" ".join(done.stderr.split())[-500:],
                wanted="a wheel for this interpreter, from the package index or a file",
                repair="pass --wheel FILE, or check the version and your mirror settings (UV_DEFAULT_INDEX)",
            )
        root = Path(place)
        paths = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
        files = {path: (root / path).read_bytes() for path in paths if _wanted(path, import_name)}
    return _checked(f"{requirement} of the package index", name, version, import_name, files)
