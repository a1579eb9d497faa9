"""Real installers, hardlinks, symlinks and bytecode."""

from __future__ import annotations

import ensurepip
import hashlib
import os
import py_compile
import subprocess
import zipfile
from pathlib import Path

import pytest
from overlay_toy import BETA, UV, make_env, run_python, site_of, snapshot, uv_install

PIP = next(Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl"), None)


def digest_of(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.suffix != ".lock"}


@pytest.mark.skipif(UV is None, reason="no uv on PATH or in .tools")
@pytest.mark.parametrize("mode", ["hardlink", "symlink", "copy"])
def test_uv_cache_and_other_environments_stay_as_they_are(world, tmp_path, mode):
    cache, other = tmp_path / "cache", make_env(tmp_path / "other")
    world.python = make_env(tmp_path / "env")
    uv_install(world, cache, mode)
    mine, world.python = world.python, other
    uv_install(world, cache, mode)
    world.python = mine
    core = world.site / "alpha/core.py"
    assert (core.stat().st_nlink > 1) == (mode == "hardlink") and core.is_symlink() == (mode == "symlink")
    cached, pristine = digest_of(cache), world.snapshot()
    for _ in range(2):
        assert world.run("apply")[0] == 0
        assert not core.is_symlink() and core.stat().st_nlink == 1
        assert world.run("revert")[0] == 0
        assert world.snapshot() == pristine
    assert world.run("apply")[0] == 0
    # A reinstall brings every file back, and leaves none of ours: RECORD lists the files that patches create.
    uv_install(world, cache, mode, "--reinstall")
    assert world.states() == {"alpha": "CLEAN", "beta": "CLEAN"}
    assert not (world.site / "alpha/fresh/more.py").exists()
    assert world.run("apply")[0] == 0 and world.run("verify")[0] == 0
    assert digest_of(cache) == cached
    assert {k: v for k, v in snapshot(other).items() if k in pristine} == pristine


@pytest.mark.skipif(PIP is None, reason="this Python carries no pip for ensurepip")
def test_pip_reinstall_and_uninstall(world, tmp_path):
    zipfile.ZipFile(PIP).extractall(tmp_path / "pip")

    def pip(*arguments: str) -> None:
        command = [str(world.python), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "pip")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        subprocess.run(command, check=True, env=environment, capture_output=True, cwd="/")

    def packages() -> dict[str, bytes]:
        return {path: data for path, data in world.snapshot().items() if path.startswith(("alpha/", "beta/"))}

    pristine = packages()
    assert world.run("apply")[0] == 0
    options = ["--force-reinstall", "--no-index", "--no-deps", "--find-links", str(world.wheels)]
    pip("install", *options, "alpha==1.2", "beta-cpu==0.5")
    assert packages() == pristine and world.states() == {"alpha": "CLEAN", "beta": "CLEAN"}
    installed = world.snapshot()
    assert world.run("apply")[0] == 0 and world.run("verify")[0] == 0
    assert world.run("revert")[0] == 0 and world.snapshot() == installed
    assert world.run("apply")[0] == 0
    pip("uninstall", "--yes", "alpha")
    assert not (world.site / "alpha").exists()  # nothing of ours is left behind as a ghost package
    assert world.states() == {"alpha": "NOT_INSTALLED", "beta": "APPLIED"}


READ_MODE = "import beta.mod; print(beta.mod.MODE)"


@pytest.mark.parametrize("kind", ["TIMESTAMP", "CHECKED_HASH", "UNCHECKED_HASH"])
@pytest.mark.parametrize("optimize", [0, 1])
def test_stale_bytecode_never_runs(world, kind, optimize):
    """stock -> fixed has another size only by chance: every kind of cached bytecode has to go."""
    source = world.site / "beta/mod.py"
    mode = py_compile.PycInvalidationMode[kind]
    environment = {"PYTHONOPTIMIZE": str(optimize)} if optimize else {}
    for command, value in (("apply", "fixed"), ("revert", "stock"), ("apply", "fixed")):
        py_compile.compile(str(source), optimize=optimize or -1, invalidation_mode=mode, doraise=True)
        py_compile.compile(str(source), optimize=optimize, invalidation_mode=mode, doraise=True)
        assert list((world.site / "beta/__pycache__").glob("mod.*.pyc"))
        assert world.run(command)[0] == 0
        assert run_python(world.python, READ_MODE, **environment) == value


def test_bytecode_kept_elsewhere_never_matches(world, tmp_path):
    """With PYTHONPYCACHEPREFIX the overlay cannot find the bytecode; same size, and written within the same second."""
    assert len(BETA["beta/mod.py"]) == len(world.patched["beta/mod.py"])
    prefix = {"PYTHONPYCACHEPREFIX": str(tmp_path / "cache")}
    for command, value in (("apply", "fixed"), ("revert", "stock")):
        os.utime(world.site / "beta/mod.py")
        run_python(world.python, READ_MODE, **prefix)
        assert list((tmp_path / "cache").rglob("mod.*.pyc"))
        assert world.run(command)[0] == 0
        assert run_python(world.python, READ_MODE, **prefix) == value


def test_file_modes_survive(world):
    (world.site / "alpha/core.py").chmod(0o755)
    world.run("apply")
    assert (world.site / "alpha/core.py").stat().st_mode & 0o777 == 0o755
    world.run("revert")
    assert (world.site / "alpha/core.py").stat().st_mode & 0o777 == 0o755
    assert site_of(world.python) == world.site
