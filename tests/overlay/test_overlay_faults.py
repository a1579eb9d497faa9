"""Kill, fail, interrupt and race apply and revert at every system call that writes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from overlay_toy import HEADER, REPOSITORY, World, commit, copy_world, git, load, site_of

import rft
from rft.overlay import probe, target
from rft.overlay.cli import main
from rft.overlay.series import sha256

# Audit events are raised by the interpreter itself before each call, so no step can be left out of the list.
WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.utime", "os.chmod", "os.link", "os.truncate"}
KILL, FAIL, TERM = "kill", "fail", "term"


@pytest.fixture
def probed_here(monkeypatch):
    """Examine an environment's folders in this process: what is tested here runs hundreds of times."""

    def examine(python: str, wanted: dict) -> dict:
        found = probe.report(wanted, [str(site_of(Path(python)))])
        return found | {"rft": {"version": rft.__version__, "file": rft.__file__}}

    monkeypatch.setattr(target, "_probe", examine)


def in_child(arguments: list[str], site: Path, at: int | None = None, how: str = KILL) -> tuple[int, int]:
    """Run one command in a forked process; at its write number `at`, kill it, let the call fail, or signal it.

    Returns the wait status and the number of writes seen.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 99
        with contextlib.suppress(BaseException):
            _watch(writer, str(site), at, how)
            with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
                code = main(arguments)
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        count = len(file.read())
    return os.waitpid(pid, 0)[1], count


def _watch(writer: int, site: str, at: int | None, how: str) -> None:
    seen = 0

    def step() -> None:
        nonlocal seen
        seen += 1
        os.write(writer, b".")
        if seen - 1 != at:
            return
        if how == FAIL:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.kill(os.getpid(), signal.SIGKILL if how == KILL else signal.SIGTERM)

    def audit(event: str, details: tuple) -> None:
        if event == "open":
            path, _mode, flags = details
            relevant = str(path).startswith(site) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        else:
            relevant = event in WRITES and (isinstance(details[0], int) or str(details[0]).startswith(site))
        if relevant:
            step()

    real = os.fsync

    def fsync(handle: int) -> None:  # raises no audit event of its own
        step()
        real(handle)

    os.fsync = fsync
    sys.addaudithook(audit)


def upgraded(template: World, folder: Path) -> World:
    """An environment with the template's series applied, and newer patches beside it that are not applied yet."""
    world = copy_world(template, folder)
    assert main(world.arguments("apply")) == 0
    edit = folder / "edit"
    assert main(world.arguments("edit", "alpha", "--dir", str(edit))) == 0
    git(edit, "reset", "-q", "--soft", "base")  # one patch in the place of two, and a created file less
    core = (edit / "alpha/core.py").read_bytes() + b"MORE = 1\n"
    changes = {"alpha/core.py": core, "alpha/fresh/more.py": None, "alpha/sub/deep.py": b"DEEP = 3\n"}
    commit(edit, changes | {"alpha/other.py": b"OTHER = 1\n"}, HEADER.format(subject="three"))
    assert main(world.arguments("finish", str(edit))) == 0
    other = copy_world(template, folder / "goal")
    other.patches = world.patches
    assert main(other.arguments("apply")) == 0
    world.patched = other.snapshot()
    return world


def fresh(template: World, folder: Path) -> World:
    return copy_world(template, folder)


def applied(template: World, folder: Path) -> World:
    world = copy_world(template, folder)
    assert main(world.arguments("apply")) == 0
    return world


STARTS = {"apply": (fresh, "apply"), "upgrade": (upgraded, "apply"), "revert": (applied, "revert")}


@pytest.fixture(params=STARTS)
def start(request, template, tmp_path, capsys) -> tuple[World, str]:
    """A world about to run a command: the first apply, an apply over an older series, a revert."""
    make, command = STARTS[request.param]
    world = make(template, tmp_path / "start")
    world.capsys = capsys
    capsys.readouterr()
    return world, command


def clone(world: World, folder: Path) -> World:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(world.site.parents[2], folder, symlinks=True)
    return World(folder / "bin/python", world.patches, world.wheels, world.pristine, world.patched, world.capsys)


def without_temporaries(files: dict[str, bytes]) -> dict[str, bytes]:
    return {path: data for path, data in files.items() if not path.endswith(".rft-overlay")}


def whole(world: World) -> dict[str, bytes]:
    """Every byte in site-packages, the overlay's own state included."""
    files = (path for path in sorted(world.site.rglob("*")) if path.is_file())
    own_pid = re.compile(rb"pid.{,4}\d+")
    return {str(path.relative_to(world.site)): own_pid.sub(b"", path.read_bytes()) for path in files}


def assert_truth(world: World, capsys) -> None:
    """status agrees, package by package and file by file, with what lies on disk."""
    assert main(world.arguments("status", "--json")) == 0
    found = world.snapshot()
    journal = (world.site / ".rft-overlay/journal.json").exists()
    for package in load(capsys.readouterr().out)["packages"]:
        name = package["import_name"]
        mine = {p: d for p, d in without_temporaries(found).items() if p.startswith(name)}
        is_patched = mine == {p: d for p, d in world.patched.items() if p.startswith(name)}
        is_pristine = mine == {p: d for p, d in world.pristine.items() if p.startswith(name)}
        if package["state"] == "APPLIED":
            assert is_patched and not journal
        elif package["state"] == "CLEAN":
            assert is_pristine and not journal
        else:
            assert package["state"] == "PARTIAL" and (journal or not (is_patched or is_pristine))
        for path, file in package["files"].items():
            assert file["found"] == sha256(found.get(path))
            assert file["state"] in ("PATCHED", "PRISTINE", "OUTDATED")


def test_sigkill_at_every_step(probed_here, start, tmp_path, capsys):
    world, command = start
    status, steps = in_child(clone(world, tmp_path / "dry").arguments(command), tmp_path)
    assert status == 0 and steps > 30
    seen: list[dict] = []  # what a kill leaves is judged once: a sync, say, changes nothing that can be read
    for step in range(steps):
        broken = clone(world, tmp_path / "broken")
        status, _ = in_child(broken.arguments(command), tmp_path, step)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        left = whole(broken)
        if left in seen:
            continue
        seen.append(left)
        assert_truth(broken, capsys)
        for repair, wanted in (("apply", world.patched), ("revert", world.pristine)):
            repaired = clone(broken, tmp_path / "repaired")
            code, out, err = repaired.run(repair)
            assert code == 0, f"step {step}: {repair} gave {out}{err}"
            assert repaired.snapshot() == wanted, f"step {step}: {repair}"
            assert not (repaired.site / ".rft-overlay/journal.json").exists()
    assert len(seen) > 15


@pytest.mark.parametrize(("start", "how"), [("upgrade", FAIL), ("revert", FAIL), ("apply", TERM)], indirect=["start"])
def test_fault_at_every_step_rolls_back(probed_here, start, tmp_path, capsys, how):
    """A full disk or a SIGTERM: exit 7, the tree as before; or the work was already done and the exit says so."""
    world, command = start
    before, after = world.snapshot(), world.patched if command == "apply" else world.pristine
    _, steps = in_child(clone(world, tmp_path / "dry").arguments(command), tmp_path)
    rolled_back = 0
    for step in range(steps):
        broken = clone(world, tmp_path / "broken")
        status, _ = in_child(broken.arguments(command), tmp_path, step, how)
        if os.WIFSIGNALED(status):
            # Outside the transaction SIGTERM keeps its meaning: nothing was begun, or everything is done.
            assert how == TERM and broken.snapshot() in (before, after)
            continue
        code = os.WEXITSTATUS(status)
        assert code in (0, 7), f"step {step}"
        assert broken.snapshot() == (before if code == 7 else after), f"step {step}"
        rolled_back += code == 7
        assert not (broken.site / ".rft-overlay/journal.json").exists()
        assert_truth(broken, capsys)
    assert rolled_back > 20


def test_kill_during_recovery(probed_here, template, tmp_path, capsys):
    """A recovery that is itself killed at every step is still recovered."""
    world = copy_world(template, tmp_path / "w", capsys)
    _, steps = in_child(clone(world, tmp_path / "dry").arguments("apply"), tmp_path)
    broken = clone(world, tmp_path / "broken")
    in_child(broken.arguments("apply"), tmp_path, steps - 12)
    assert world.snapshot() != broken.snapshot()
    _, steps = in_child(clone(broken, tmp_path / "dry").arguments("revert"), tmp_path)
    for step in range(steps):
        again = clone(broken, tmp_path / "again")
        in_child(again.arguments("revert"), tmp_path, step)
        assert_truth(again, capsys)
        assert again.run("revert")[0] == 0 and again.snapshot() == world.pristine


def test_disk_full_for_real(world, tmp_path):
    """The kernel refuses to write more than 600 bytes a file: journal and backups fit, a patched file does not."""
    before = world.snapshot()
    for limit in (600, 100):
        pid = os.fork()
        if pid == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            os._exit(main(world.arguments("apply")))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert world.snapshot() == before and set(world.states().values()) == {"CLEAN"}


def drop_root_powers() -> None:
    """Let file modes bind root too (CAP_DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER), in this process only."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    for index in (0, 1):  # effective, permitted; low words
        data[index] &= ~(1 << 1 | 1 << 2 | 1 << 3)
    assert libc.capset(header, data) == 0


def test_read_only_site_packages(world, tmp_path):
    """apply exits 6 and changes nothing; status and verify work; apply on an applied tree has nothing to write."""

    def as_reader(*words: str) -> int:
        pid = os.fork()
        if pid == 0:
            if os.geteuid() == 0:
                drop_root_powers()
            os._exit(main(world.arguments(*words)))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    folders = [path for path in [world.site, *world.site.rglob("*")] if path.is_dir()]
    try:
        for folder in folders:
            folder.chmod(0o555)
        assert (as_reader("apply"), as_reader("status"), as_reader("verify")) == (6, 0, 1)
        world.site.chmod(0o755)  # the state folder can be written, the package cannot
        assert as_reader("apply") == 6 and world.snapshot() == world.pristine
        assert set(world.states().values()) == {"CLEAN"}
        for folder in folders:
            folder.chmod(0o755)
        assert world.run("apply")[0] == 0
        for folder in [path for path in [world.site, *world.site.rglob("*")] if path.is_dir()]:
            folder.chmod(0o555)
        assert (as_reader("apply"), as_reader("status"), as_reader("verify")) == (0, 0, 0)
        assert as_reader("revert") == 6 and world.snapshot() == world.patched
    finally:
        for folder in [path for path in [world.site, *world.site.rglob("*")] if path.is_dir()]:
            folder.chmod(0o755)


def test_racing_applies_all_succeed(world):
    command = [sys.executable, "-m", "rft.overlay", *world.arguments("apply")]
    racers = [
        subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(4)
    ]
    outputs = [racer.communicate()[0].decode() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0, 0], outputs
    assert world.snapshot() == world.patched


def test_lock_held_by_another_process(world):
    with (world.site / ".rft-overlay/lock").open("w") as file:
        file.write("pid 4711 on elsewhere\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        for command in ("apply", "apply"):
            code, _, err = world.run(command, "--wait", "0.1")
            assert code == 5 and "pid 4711 on elsewhere" in err
        assert world.run("status")[0] == 0 and world.run("verify")[0] == 1
    assert world.run("apply")[0] == 0


def test_reinstalled_after_a_kill(world, tmp_path, capsys):
    """Recovery leaves alone what somebody put there since, and forgets a package that was uninstalled."""
    _, steps = in_child(clone(world, tmp_path / "dry").arguments("apply"), tmp_path)
    in_child(world.arguments("apply"), tmp_path, steps - 12)
    assert (world.site / ".rft-overlay/journal.json").exists()
    (world.site / "alpha/core.py").write_bytes(b"a third version\n")
    shutil.rmtree(world.site / "beta"), shutil.rmtree(world.site / "beta_cpu-0.5.dist-info")
    code, _, err = world.run("apply", "alpha")
    assert code == 1 and "alpha/core.py is DRIFTED" in err
    assert (world.site / "alpha/core.py").read_bytes() == b"a third version\n"
    assert not (world.site / "beta").exists()


def test_upgrade_proves_the_older_series(template, tmp_path, capsys):
    world = upgraded(template, tmp_path / "w")
    world.capsys = capsys
    capsys.readouterr()
    code, out, _ = world.run("status", "alpha")
    assert code == 0 and "PARTIAL" in out and "an earlier one; `apply` upgrades it" in out
    assert "OUTDATED   alpha/core.py" in out
    assert world.run("verify")[0] == 1
    assert world.run("edit", "alpha", "--dir", str(tmp_path / "again"))[0] == 0
    assert git(tmp_path / "again", "show", "base:alpha/core.py").encode() == world.pristine["alpha/core.py"]
    record = world.site / ".rft-overlay/applied-alpha.json"
    saved = record.read_bytes()
    record.unlink()
    code, _, err = world.run("apply")
    assert code == 1 and "alpha/core.py is DRIFTED" in err and "apply_patches.sh repair" in err
    record.write_bytes(saved)
    assert world.run("apply")[0] == 0
    assert world.snapshot() == world.patched
    assert world.run("revert")[0] == 0
    assert world.snapshot() == world.pristine


def test_venv_inside_a_checkout(world, tmp_path):
    """`git apply` would skip every patch there and exit 0."""
    root = world.site.parents[3]
    git(root.parent, "init", "-q")
    assert world.run("apply")[0] == 0
    assert world.snapshot() == world.patched
    assert world.run("check")[0] == 0
    assert world.run("revert")[0] == 0
    assert world.snapshot() == world.pristine
