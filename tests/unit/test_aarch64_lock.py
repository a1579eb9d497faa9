"""requirements/gpu-aarch64.txt: the versions of gpu.txt, and each of them there for aarch64 under one of its hashes."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = shutil.which("uv") or shutil.which(ROOT / ".tools/uv/bin/uv")


def pins(name):
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", (ROOT / f"requirements/{name}.txt").read_text(), re.MULTILINE))


def hashes(name, package):
    text = (ROOT / f"requirements/{name}.txt").read_text()
    return set(re.findall("sha256:([0-9a-f]{64})", re.search(rf"^{package}==.*?(?=^\S|\Z)", text, re.M | re.S)[0]))


def install(tmp_path, platform, name):
    """uv's dry run of an installation on that platform, from its cache alone."""
    words = [UV, "pip", "install", "--dry-run", "--offline", "--python", sys.executable, "--target", tmp_path / "there"]
    words += ["--python-platform", f"{platform}-manylinux_2_35", "--no-deps", "--require-hashes"]
    done = subprocess.run([*words, "-r", ROOT / f"requirements/{name}.txt"], capture_output=True, text=True)
    if "disabled" in done.stderr or "offline" in done.stderr:
        pytest.skip(f"uv has not cached the metadata of requirements/{name}.txt: bash requirements/compile.sh")
    return done


def test_versions_are_those_of_x86():
    ours, theirs = pins("gpu-aarch64"), pins("gpu")
    assert {name: theirs.get(name) for name in ours} == ours
    left_out = {name for name in theirs.keys() - ours.keys() if not name.startswith("nvidia-")}
    assert left_out == {"openrlhf"}, "torch's wheel of PyPI brings CUDA's libraries on x86-64 only"


def test_openrlhf_is_the_wheel_that_x86_installs():
    assert pins("openrlhf") == {"openrlhf": pins("gpu")["openrlhf"]}
    assert hashes("openrlhf", "openrlhf") == hashes("gpu", "openrlhf")


@pytest.mark.skipif(UV is None, reason="no uv on PATH or in .tools (set-up installs one)")
def test_every_package_has_a_wheel_or_source_for_aarch64(tmp_path):
    done = install(tmp_path, "aarch64", "gpu-aarch64")
    assert done.returncode == 0, done.stderr
    assert f"Would install {len(pins('gpu-aarch64'))} packages" in done.stderr


@pytest.mark.skipif(UV is None, reason="no uv on PATH or in .tools (set-up installs one)")
def test_openrlhf_is_taken_as_x86s_alone(tmp_path):
    refused = install(tmp_path, "aarch64", "openrlhf")
    assert refused.returncode and "no wheels with a matching platform tag" in refused.stderr
    taken = install(tmp_path, "x86_64", "openrlhf")
    assert taken.returncode == 0 and "+ openrlhf==" in taken.stderr
