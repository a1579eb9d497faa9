"""A small checkout for the tests of launch/setup.sh: a real uv, one toy requirement a stack.

apply_patches.sh is replaced by a script that writes down how it was called; tests/overlay covers the real one.
"""

import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = shutil.which("uv") or shutil.which(ROOT / ".tools/uv/bin/uv")
needs_uv = pytest.mark.skipif(UV is None, reason="no uv on PATH or in .tools (set-up installs one)")

# A build backend of its own, so that the toy project needs no setuptools.
BACKEND = """
import zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("toy.pth", "")
        wheel.writestr("toy-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: toy\\nVersion: 1.0\\n")
        wheel.writestr("toy-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("toy-1.0.dist-info/RECORD", "")
    return name
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "toy"
version = "1.0"
"""
PATCHES = """
echo "$1" >> "$(dirname "$0")/patch-calls"
[[ ! -e "$(dirname "$0")/patches-fail" ]]
"""


def add_requirement(checkout, name, stack="cpu"):
    """Put a wheel of one module into the checkout and pin it for a stack, with its hash."""
    wheel = checkout / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}.py", "value = 1\n")
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    with open(checkout / "requirements" / f"{stack}.txt", "a") as file:
        file.write(f"./{wheel.name} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")


def make(checkout):
    """A checkout that can be set up without a network, for either stack."""
    shutil.copytree(ROOT / "launch", checkout / "launch")
    (checkout / "requirements").mkdir()
    (checkout / "backend.py").write_text(BACKEND)
    (checkout / "pyproject.toml").write_text(PYPROJECT)
    (checkout / "apply_patches.sh").write_text(PATCHES)
    add_requirement(checkout, "first")
    add_requirement(checkout, "for_gpus", "gpu")
    return checkout


def start_setup(checkout, path="", **environment):
    """Run setup_env; ``path`` is searched before the PATH that has everything but uv (see `UV`)."""
    variables = {
        "PATH": f"{path}:{Path(UV).parent if UV else ''}:{os.environ['PATH']}",
        "HOME": str(checkout.parent),
        "RFT_STACK": "cpu",
        "UV_OFFLINE": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "UV_NO_CONFIG": "1",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    }
    return subprocess.Popen(
        ["bash", "-c", '. launch/common.sh; setup_env; echo "$VENV/$STAMP is written"', "setup"],
        cwd=checkout,
        env=variables | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def setup(checkout, path="", **environment):
    process = start_setup(checkout, path, **environment)
    out, err = process.communicate(timeout=300)  # a hang, whatever the machine
    return process.returncode, out, err


def script(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)
    return folder


def only(folder, *tools):
    """A PATH of the named tools alone."""
    folder.mkdir()
    for tool in tools:
        (folder / tool).symlink_to(shutil.which(tool))
    return str(folder)


def modules(checkout, environment=".venv"):
    found = checkout.glob(f"{environment}/lib/python3.11/site-packages/*.py")
    return {p.stem for p in found if not p.stem.startswith("_")}
