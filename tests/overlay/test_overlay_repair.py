"""repair: drifted, missing and foreign files, a poisoned hard link, and printed repairs that work when pasted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest
from overlay_toy import (
    ALPHA,
    REPOSITORY,
    UV,
    make_env,
    make_wheel,
    run_python,
    site_of,
    snapshot,
    unpack,
    uv_install,
)

needs_uv = pytest.mark.skipif(UV is None, reason="no uv on PATH or in .tools")


@pytest.fixture
def index(world, tmp_path, monkeypatch):
    """The toy wheels as the package index of every uv that is started, and a cache of its own."""
    for name, value in {
        "FIND_LINKS": world.wheels,
        "NO_INDEX": 1,
        "CACHE_DIR": tmp_path / "cache",
        "NO_CONFIG": 1,
    }.items():
        monkeypatch.setenv(f"UV_{name}", str(value))
    return tmp_path / "cache"


def edited_in_place(world, path="alpha/core.py"):
    with open(world.site / path, "a") as file:
        file.write("BROKEN = True\n")


@pytest.mark.parametrize("applied", [True, False])
def test_what_the_blobs_hold_needs_no_index(world, monkeypatch, applied):
    """Edited, removed, and in the place of a file that a patch creates: all at once, with neither uv nor a wheel."""
    monkeypatch.setattr("rft.overlay.index.uv", lambda: None)
    world.run("apply")
    if not applied:
        for path, data in world.pristine.items():
            if path.startswith("alpha/") and path != "alpha/core.py":
                (world.site / path).write_bytes(data)
    edited_in_place(world)
    (world.site / "alpha/crlf.py").unlink()
    (world.site / "alpha/fresh/more.py").write_text("MINE = 1\n")
    code, _, err = world.run("verify")
    assert code == 1 and "DRIFTED" in err and "repair: bash apply_patches.sh repair" in err
    for command in ("apply", "revert"):
        code, _, err = world.run(command)
        assert code == 1 and "repair: bash apply_patches.sh repair" in err
    code, out, err = world.run("repair")
    assert code == 0 and "written: alpha/core.py" in out and not err, err
    assert world.snapshot() == world.patched and world.run("verify")[0] == 0
    assert world.run("repair")[1].startswith("nothing to do")
    assert world.run("revert")[0] == 0 and world.snapshot() == world.pristine


def test_a_file_that_no_patch_touches_comes_from_a_wheel(world, monkeypatch):
    monkeypatch.setattr("rft.overlay.index.uv", lambda: None)
    world.run("apply")
    edited_in_place(world, "alpha/sub/deep.py")
    before = world.snapshot()
    code, _, err = world.run("repair")
    assert code == 1 and "alpha/sub/deep.py are not to be had; nothing was changed" in err and "--wheel FILE.whl" in err
    assert world.snapshot() == before
    wheel = next(world.wheels.glob("alpha-*.whl"))
    assert world.run("repair", "--wheel", str(wheel))[0] == 0
    assert world.snapshot() == world.patched


def test_a_wheel_with_other_bytes_is_not_taken(world, tmp_path, monkeypatch):
    monkeypatch.setattr("rft.overlay.index.uv", lambda: None)
    edited_in_place(world)
    other = make_wheel(tmp_path, "alpha", "1.2", ALPHA | {"alpha/core.py": b"OTHER = 1\n"})
    before = world.snapshot()
    assert world.run("repair", "--wheel", str(other))[0] == 1
    assert world.snapshot() == before


def test_bytecode_of_what_was_edited_goes(world):
    world.run("apply")
    source = world.site / "beta/mod.py"
    source.write_bytes(source.read_bytes().replace(b"fixed", b"wrong"))
    assert run_python(world.python, "import beta.mod; print(beta.mod.MODE)") == "wrong"
    assert world.run("repair")[0] == 0
    assert run_python(world.python, "import beta.mod; print(beta.mod.MODE)") == "fixed"


@needs_uv
@pytest.mark.parametrize("path", ["alpha/core.py", "alpha/sub/deep.py"])
def test_a_poisoned_hard_link(world, tmp_path, index, path):
    """An edit in place reaches uv's cache and the other environment, and a reinstall brings it back, repair not."""
    mine, other = make_env(tmp_path / "mine"), make_env(tmp_path / "other")
    for world.python in (other, mine):
        uv_install(world, index, "hardlink")
    edited_in_place(world, path)
    poisoned = (world.site / path).read_bytes()
    assert (site_of(other) / path).read_bytes() == poisoned
    uv_install(world, index, "hardlink", "--reinstall")
    assert (world.site / path).read_bytes() == poisoned
    if path == "alpha/core.py":
        assert "hard links" in world.run("status")[1]
    for world.python in (mine, other):
        code, out, err = world.run("repair")
        assert code == 0 and f"written: {path}" in out, err
        assert f"note: {path} had several names (hard links)" in err and "cache clean alpha" in err
        found = snapshot(world.python)
        assert {name: data for name, data in found.items() if name.startswith(("alpha/", "beta/"))} == {
            name: data for name, data in world.patched.items() if name.startswith(("alpha/", "beta/"))
        }
        assert world.run("verify")[0] == 0 and (world.site / path).stat().st_nlink == 1
        assert not list((world.site / ".rft-overlay").glob("index-*"))


@needs_uv
def test_a_locked_version_needs_its_locked_hash(world, index, tmp_path, monkeypatch):
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/cpu.txt").write_text(f"alpha==1.2 \\\n    --hash=sha256:{'0' * 64}\n")
    shutil.copytree(REPOSITORY / "rft", tmp_path / "rft", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr("rft.overlay.index.REPOSITORY", tmp_path)
    monkeypatch.setattr("rft.overlay.index.uv", lambda: UV)
    edited_in_place(world)
    code, _, err = world.run("repair")
    assert code == 1 and "nothing was changed" in err and "hash" in err.lower()


@needs_uv
@pytest.mark.parametrize("on_path", [True, False])
def test_printed_repairs_work_when_pasted(world, index, tmp_path, monkeypatch, on_path):
    """From the repository's folder, with uv on PATH and with the one in .tools alone."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "dirname", "sh", "env"):
        (tools / name).symlink_to(shutil.which(name))
    if on_path:
        (tools / "uv").symlink_to(UV)
    elif not (REPOSITORY / ".tools/uv/bin/uv").exists():
        pytest.skip("no uv in .tools")
    monkeypatch.setenv("PATH", str(tools))

    def paste(error: str) -> None:
        (command,) = re.findall(r"repair: (.*)", error)
        command = command.replace("apply_patches.sh", f"apply_patches.sh --patches {world.patches}")
        command = re.sub(r"(apply_patches.sh)( --patches \S+) (repair)", r"\1 \3\2", command)
        done = subprocess.run(["bash", "-c", command], cwd=REPOSITORY, env=os.environ, capture_output=True, text=True)
        assert done.returncode == 0, command + done.stderr

    edited_in_place(world)
    paste(world.run("verify", "alpha")[2])
    assert world.run("verify", "alpha")[0] == 0

    world.python = make_env(tmp_path / "older")
    unpack(world.python, make_wheel(tmp_path, "alpha", "1.1", ALPHA))
    paste(world.run("apply", "alpha")[2])
    assert world.states()["alpha"] == "CLEAN"
