"""launch/setup.sh in a small checkout: what it installs, repairs and refuses."""

import os
import shlex
import signal
import subprocess
import sys

import pytest
from toy_checkout import ROOT, UV, add_requirement, modules, needs_uv, only, script, setup, start_setup


def patch_calls(checkout):
    calls = (checkout / "patch-calls").read_text().split()
    (checkout / "patch-calls").unlink()
    return calls


TOOLS = shlex.split(
    "bash dirname basename date mkdir flock cat sha256sum df du awk grep cut paste rm ls realpath readlink uname"
)


def test_no_python_311(checkout, tmp_path):
    path = only(tmp_path / "bin", *TOOLS)
    script(tmp_path / "bin", "python3", "[[ $1 != --version ]] || echo Python 3.9.2; exit 1")
    code, _, err = setup(checkout, PATH=path)
    assert code == 1
    assert "no Python 3.11" in err and "Python 3.9.2" in err and "install python3.11" in err
    assert not list(checkout.glob(".venv*"))


def test_a_shim_that_does_not_run_is_no_python(checkout, tmp_path):
    path = only(tmp_path / "bin", *TOOLS)
    script(tmp_path / "bin", "python3.11", "echo 'command not found' >&2; exit 127")
    code, _, err = setup(checkout, PATH=path)
    assert code == 1
    assert "no Python 3.11" in err and "no python3 on PATH" in err


def test_a_disk_that_is_too_small(checkout, tmp_path):
    fake = script(tmp_path / "bin", "df", "printf 'Filesystem 1M Used Available Use%% On\\nx 9 8 1234 90%% /\\n'")
    code, _, err = setup(checkout, path=str(fake))
    assert code == 1
    assert "the disk is too small" in err and "1234 MB free" in err and "10000 MB" in err
    assert not list(checkout.glob(".venv*"))


def test_no_network_and_no_uv(checkout, tmp_path):
    path = only(tmp_path / "bin", *TOOLS)
    (tmp_path / "bin" / "python3.11").symlink_to(os.path.realpath(sys.executable))
    code, _, err = setup(checkout, PATH=path)
    assert code == 1
    assert "uv could not be installed" in err and "check the network" in err
    assert not list(checkout.glob(".venv*"))
    assert not (checkout / ".tools/uv/bin/uv").exists()


@needs_uv
def test_a_missing_wheel(checkout):
    with open(checkout / "requirements" / "cpu.txt", "a") as file:
        file.write(f"nowhere==1.0 --hash=sha256:{'0' * 64}\n")
    code, _, err = setup(checkout)
    assert code == 1
    assert "the packages could not be installed" in err and "nowhere" in err
    assert not (checkout / ".venv-cpu/.rft-setup").exists()
    assert not (checkout / "patch-calls").exists()


@needs_uv
def test_a_wheel_with_another_hash_is_refused(checkout):
    requirements = checkout / "requirements" / "cpu.txt"
    name = requirements.read_text().split()[0]
    requirements.write_text(f"{name} --hash=sha256:{'0' * 64}\n")
    code, _, err = setup(checkout)
    assert code == 1 and "Hash mismatch" in err
    assert not (checkout / ".venv-cpu/.rft-setup").exists()


@needs_uv
def test_install_then_nothing_to_do_then_a_changed_requirement(checkout):
    code, out, err = setup(checkout)
    assert code == 0, err
    assert modules(checkout) == {"first"} and patch_calls(checkout) == ["apply", "verify"]
    assert list(checkout.glob(".venv/lib/python3.11/site-packages/__pycache__/first.*.pyc")), "bytecode is compiled"

    code, out, err = setup(checkout)
    assert code == 0 and "installing" not in out
    assert patch_calls(checkout) == ["verify"]

    add_requirement(checkout, "second")
    code, out, err = setup(checkout)
    assert code == 0 and "installing" in out
    assert modules(checkout) == {"first", "second"}


@needs_uv
def test_patches_that_got_lost_are_applied_again(checkout):
    assert setup(checkout)[0] == 0
    patch_calls(checkout)
    (checkout / "patches-fail").touch()
    assert setup(checkout)[0] == 1
    assert patch_calls(checkout) == ["verify", "apply"]


@needs_uv
@pytest.mark.parametrize("stamp", ["", "garbage\n", "\0\xff" * 100])
def test_a_damaged_stamp_is_repaired(checkout, stamp):
    assert setup(checkout)[0] == 0
    good = (checkout / ".venv/.rft-setup").read_text()
    (checkout / ".venv/.rft-setup").write_text(stamp)
    code, out, err = setup(checkout)
    assert code == 0 and "installing" in out, err
    assert (checkout / ".venv/.rft-setup").read_text() == good


@needs_uv
def test_a_checkout_that_moved_is_set_up_again(checkout):
    assert setup(checkout)[0] == 0
    moved = checkout.rename(checkout.with_name("moved"))
    code, out, err = setup(moved)
    assert code == 0 and "installing" in out, err


@needs_uv
def test_an_installation_that_was_killed_is_started_over(checkout, tmp_path):
    """uv is killed, with the launcher, when half of a package is there."""
    site = checkout / ".venv-cpu/lib/python3.11/site-packages"
    fake = script(
        tmp_path / "bin",
        "uv",
        f'[[ $1 == pip ]] || exec "{UV}" "$@"; mkdir -p {site}/half; touch {site}/half/__init__.py; kill -9 0',
    )
    assert setup(checkout, path=str(fake))[0] == -signal.SIGKILL
    assert (site / "half").exists() and not (checkout / ".venv-cpu/.rft-setup").exists()
    code, _, err = setup(checkout)
    assert code == 0, err
    assert modules(checkout) == {"first"} and not (site / "half").exists()


@needs_uv
def test_an_environment_of_the_user_is_completed_not_replaced(checkout):
    subprocess.run([UV, "venv", "--quiet", "--offline", "--python", "3.11", checkout / ".venv"], check=True)
    mine = checkout / ".venv/lib/python3.11/site-packages/mine.py"
    mine.touch()
    assert setup(checkout)[0] == 0
    assert modules(checkout) == {"first", "mine"}


@needs_uv
def test_an_interpreter_that_is_gone_is_replaced(checkout):
    assert setup(checkout)[0] == 0
    python = checkout / ".venv/bin/python"
    python.unlink()
    python.symlink_to("/nowhere/python3.11")
    code, _, err = setup(checkout)
    assert code == 0, err
    assert modules(checkout) == {"first"}


@needs_uv
def test_two_at_once_install_once(checkout):
    both = [start_setup(checkout) for _ in range(2)]
    results = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    assert sum("installing" in out for out, _ in results) == 1


def test_a_dry_run_sets_nothing_up(checkout):
    before = sorted(checkout.rglob("*"))
    assert setup(checkout, DRY_RUN="1")[0] == 0
    assert sorted(checkout.rglob("*")) == before


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "requirements").glob("*.txt")))
def test_requirements_name_no_index(name):
    """Mirrors are the user's choice; an address in the tree would override it."""
    text = (ROOT / "requirements" / name).read_text()
    assert "://" not in text and "--hash=sha256:" in text
