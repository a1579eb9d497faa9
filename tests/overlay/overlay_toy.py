"""A small world for the overlay's tests: two toy packages as real wheels, hand-made venvs, a patches folder."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from rft.overlay.cli import main

REPOSITORY = Path(__file__).resolve().parents[2]
UV = shutil.which("uv") or shutil.which("uv", path=str(REPOSITORY / ".tools/uv/bin"))

# The block stands twice in core.py, files end in CRLF or in no newline, one file is deleted, a folder is created.
BLOCK = "def {0}(x):\n    y = x\n    return y\n\n\n"
ALPHA = {
    "alpha/__init__.py": b"",
    "alpha/core.py": ("".join(BLOCK.format(n) for n in ("first", "second")) + "VALUE = 'old'\n").encode(),
    "alpha/crlf.py": b"A = 1\r\nB = 2\r\nC = 3\r\n",
    "alpha/nonl.py": b"# text\nLAST = 1",
    "alpha/old.py": b"GONE = True\n",
    "alpha/sub/__init__.py": b"",
    "alpha/sub/deep.py": b"DEEP = 1\n",
    "alpha/data.json": b"{}\n",
}
BETA = {"beta/__init__.py": b"", "beta/mod.py": b"MODE = 'stock'\n"}
HEADER = """{subject}

Group: CPU
Why: the toy needs it
Upstream-Status: Inappropriate [toy]
Affects: nothing (numerics: unchanged)
Probe: tests/overlay/test_overlay_states.py::test_apply_status_verify_revert
Remove-When: alpha>=2 [toy]
"""


def make_wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    """Write an installable wheel with a correct RECORD."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = {
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: toy\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    content = {**files, **info}
    record = io.StringIO()
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.write(f"{path},sha256={digest},{len(data)}\n")
    record.write(f"{stem}.dist-info/RECORD,,\n")
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in [*content.items(), (f"{stem}.dist-info/RECORD", record.getvalue().encode())]:
            archive.writestr(path, data)
    return wheel


def make_env(folder: Path, with_rft: bool = True) -> Path:
    """A bare virtual environment, without pip, in a few file operations; returns its python."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    site.mkdir(parents=True)
    (folder / "bin").mkdir()
    base = Path(sys._base_executable)
    (folder / "bin/python").symlink_to(base)
    (folder / "bin" / version).symlink_to("python")
    (folder / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {sys.version.split()[0]}\n"
    )
    if with_rft:
        (site / "rft-of-this-repository.pth").write_text(f"{REPOSITORY}\n")
    return folder / "bin/python"


def site_of(python: Path) -> Path:
    (site,) = (python.parent.parent / "lib").glob("python*/site-packages")
    return site


def unpack(python: Path, wheel: Path) -> None:
    """Install a wheel the way installers do, without one."""
    site = site_of(python)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (info,) = [name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/RECORD")]
    (site / info / "INSTALLER").write_text("pip\n")


def snapshot(python: Path) -> dict[str, bytes]:
    """Every file of site-packages but bytecode and the overlay's own state."""
    site = site_of(python)
    return {
        str(path.relative_to(site)): path.read_bytes()
        for path in sorted(site.rglob("*"))
        if path.is_file() and path.suffix != ".pyc" and ".rft-overlay" not in path.relative_to(site).parts[0]
    }


def git(folder: Path, *arguments: str, text: str | None = None) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout


def commit(folder: Path, files: dict[str, bytes | None], message: str) -> None:
    for path, data in files.items():
        if data is None:
            (folder / path).unlink()
        else:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-F", "-", text=message)


def base_repository(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    git(folder, "config", "core.autocrlf", "false")
    commit(folder, files, "base")
    git(folder, "tag", "base")
    return folder


def edited(data: bytes, old: bytes, new: bytes) -> bytes:
    """Replace the last occurrence."""
    assert old in data
    return new.join(data.rsplit(old, 1))


def run_python(python: Path, code: str, **environment: str) -> str:
    """Output of a snippet in the environment, reading and writing bytecode as usual."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | environment
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, env=kept, check=True, cwd="/")
    return done.stdout.strip()


def load(text: str) -> dict:
    return json.loads(text)


@dataclass
class World:
    """One environment with alpha 1.2 and beta-cpu 0.5, their patches, and the two trees that are right."""

    python: Path
    patches: Path
    wheels: Path
    pristine: dict[str, bytes]
    patched: dict[str, bytes]
    capsys: pytest.CaptureFixture | None = None

    @property
    def site(self) -> Path:
        return site_of(self.python)

    def arguments(self, *words: str) -> list[str]:
        return [*words, "--python", str(self.python), "--patches", str(self.patches)]

    def run(self, *words: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of one command."""
        code = main(self.arguments(*words))
        return (code, *self.capsys.readouterr())

    def states(self) -> dict[str, str]:
        code, out, _ = self.run("status", "--json")
        assert code == 0
        return {package["import_name"]: package["state"] for package in load(out)["packages"]}

    def snapshot(self) -> dict[str, bytes]:
        return snapshot(self.python)


def copy_world(template: World, folder: Path, capsys=None) -> World:
    root = template.python.parents[2]
    shutil.copytree(root / "env", folder / "env", symlinks=True)
    shutil.copytree(template.patches, folder / "patches")
    return World(
        folder / "env/bin/python",
        folder / "patches",
        template.wheels,
        template.pristine,
        template.patched,
        capsys,
    )


def uv_install(world: World, cache: Path, mode: str, *options: str) -> None:
    """Install the toy wheels with uv: `mode` is its link mode."""
    command = [UV, "pip", "install", "--quiet", "--offline", "--no-index", "--no-deps", "--no-config", *options]
    command += ["--find-links", str(world.wheels), "--python", str(world.python), "alpha==1.2", "beta-cpu==0.5"]
    environment = os.environ | {"UV_CACHE_DIR": str(cache), "UV_LINK_MODE": mode}
    subprocess.run(command, check=True, env=environment, capture_output=True)
