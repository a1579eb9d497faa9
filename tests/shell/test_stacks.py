"""The two stacks: an environment each, the link .venv, and what a launch does to an environment that is in use."""

import contextlib
import os
import shutil
import subprocess
import sys

import pytest
from launching import ROOT, launch
from toy_checkout import add_requirement, modules, needs_uv, script, setup


def contents(environment):
    """Every file of an environment with its time."""
    return {path: path.lstat().st_mtime_ns for path in environment.rglob("*")}


@contextlib.contextmanager
def library_in_use(environment):
    """The id of a process that has loaded a file of the environment, as one that runs there has its libraries."""
    library = environment / "lib/python3.11/site-packages/toy.so"
    library.write_bytes(b"x" * 4096)
    code = "import mmap, sys\nwith open(sys.argv[1], 'rb') as f: m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
    code += "print('loaded', flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, library], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "loaded\n"
        yield process.pid
        process.stdin.close()


@needs_uv
def test_python_collects_garbage_seldom_in_the_cpu_stack_alone(checkout):
    """Also in an environment that was set up before there was such a thing."""
    assert setup(checkout)[0] == 0
    (checkout / ".venv-cpu/lib/python3.11/site-packages/rft-collect-seldom.pth").unlink()
    found = {}
    for stack in ("cpu", "gpu"):
        assert setup(checkout, RFT_STACK=stack)[0] == 0
        command = [checkout / f".venv-{stack}/bin/python", "-c", "import gc; print(gc.get_threshold()[0])"]
        found[stack] = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert found == {"cpu": "50000\n", "gpu": "700\n"}


@needs_uv
def test_each_stack_has_an_environment_of_its_own(checkout):
    """.venv comes to name the one for GPUs, and stays: a later set-up of the other stack changes nothing there."""
    code, out, _ = setup(checkout)
    assert code == 0 and "environment: .venv-cpu, the cpu stack, .venv is now a link to .venv-cpu\n" in out
    before = contents(checkout / ".venv-cpu")
    code, out, _ = setup(checkout, RFT_STACK="gpu")
    assert code == 0 and "environment: .venv-gpu, the gpu stack, .venv is now a link to .venv-gpu\n" in out
    assert modules(checkout) == modules(checkout, ".venv-gpu") == {"for_gpus"}
    assert modules(checkout, ".venv-cpu") == {"first"} and contents(checkout / ".venv-cpu") == before
    before = contents(checkout / ".venv-gpu")
    add_requirement(checkout, "second")
    code, out, _ = setup(checkout)
    assert code == 0 and "environment: .venv-cpu, the cpu stack, .venv is a link to .venv-gpu\n" in out
    assert modules(checkout, ".venv-cpu") == {"first", "second"} and contents(checkout / ".venv-gpu") == before
    shutil.rmtree(checkout / ".venv-gpu")
    assert setup(checkout)[0] == 0 and modules(checkout) == {"first", "second"}


@needs_uv
def test_a_newer_release_has_an_environment_beside_the_others(checkout):
    """Chosen by its whole name; .venv never names it, and it reads what the CPU's reads."""
    add_requirement(checkout, "newer", "cpu-1.2.3")
    code, out, err = setup(checkout, RFT_STACK="cpu-1.2.3")
    assert code == 0, err
    assert "environment: .venv-cpu-1.2.3, the cpu-1.2.3 stack: call programs of .venv-cpu-1.2.3/bin\n" in out
    assert modules(checkout, ".venv-cpu-1.2.3") == {"newer"} and not (checkout / ".venv").exists()
    assert setup(checkout)[0] == 0 and modules(checkout) == {"first"}
    code, out, _ = setup(checkout, RFT_STACK="cpu-1.2.3")
    assert code == 0 and "installing" not in out and modules(checkout) == {"first"}
    python = checkout / ".venv-cpu-1.2.3/bin/python"
    asked = [python, "-c", "from rft.record.environment import stack_name; print(stack_name())"]
    done = subprocess.run(asked, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    assert done.stdout == "cpu-1.2.3\n"
    read = ["bash", "-c", '. launch/common.sh; echo "$STACK_KIND $DS_ACCELERATOR"', "setup"]
    environment = {"PATH": os.environ["PATH"], "RFT_STACK": "cpu-1.2.3"}
    done = subprocess.run(read, cwd=checkout, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "cpu cpu\n"
    code, _, err = setup(checkout, RFT_STACK="cpu-1.2.4")
    assert code == 1 and "RFT_STACK=cpu-1.2.4" in err and "one of cpu gpu cpu-1.2.3" in err


@needs_uv
def test_nothing_changes_under_a_live_run(checkout):
    assert setup(checkout)[0] == 0
    with library_in_use(checkout / ".venv-cpu") as pid:
        before = contents(checkout / ".venv-cpu")
        code, out, err = setup(checkout, RFT_STACK="gpu")
        assert code == 0, err
        assert f".venv stays a link to .venv-cpu, which processes {pid} use" in out and modules(checkout) == {"first"}
        add_requirement(checkout, "second")
        code, _, err = setup(checkout)
        assert code == 1 and "the environment is in use" in err and f"processes {pid}," in err
        assert contents(checkout / ".venv-cpu") == before
    code, out, err = setup(checkout)
    assert code == 0 and ".venv is now a link to .venv-gpu" in out, err
    assert modules(checkout, ".venv-cpu") == {"first", "second"}


@needs_uv
@pytest.mark.parametrize("linked", [False, True])
def test_an_environment_of_before_there_were_two_is_kept(checkout, linked):
    """A folder .venv, or a link of the user's, is the environment of the stack that was installed there."""
    assert setup(checkout)[0] == 0
    (checkout / ".venv").unlink()
    (checkout / ".venv-cpu").rename(checkout / ("mine" if linked else ".venv"))
    if linked:
        (checkout / ".venv").symlink_to("mine")
    code, out, err = setup(checkout)
    assert code == 0 and out.splitlines()[0] == "environment: .venv, the cpu stack", out + err
    code, out, err = setup(checkout, RFT_STACK="gpu")
    assert code == 0 and ".venv is the cpu stack's: call programs of .venv-gpu/bin" in out, out + err
    assert modules(checkout) == {"first"} and modules(checkout, ".venv-gpu") == {"for_gpus"}
    assert not (checkout / ".venv-cpu").exists()


@needs_uv
def test_a_newer_release_never_takes_an_environment_of_the_users(checkout):
    """A folder .venv that set-up has not made has no stamp, and the pin in it."""
    assert setup(checkout)[0] == 0
    (checkout / ".venv").unlink()
    (checkout / ".venv-cpu").rename(checkout / ".venv")
    (checkout / ".venv/.rft-setup").unlink()
    before = contents(checkout / ".venv")
    add_requirement(checkout, "newer", "cpu-1.2.3")
    code, out, err = setup(checkout, RFT_STACK="cpu-1.2.3")
    assert code == 0 and "environment: .venv-cpu-1.2.3, the cpu-1.2.3 stack: call" in out, out + err
    assert modules(checkout, ".venv-cpu-1.2.3") == {"newer"} and contents(checkout / ".venv") == before


def test_the_tiny_launcher_takes_the_cpu_stack_on_any_machine(tmp_path):
    smi = script(tmp_path / "bin", "nvidia-smi", "echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)'")
    machine = {"PATH": f"{smi}:{os.environ['PATH']}", "DRY_RUN": "1"}
    found = {}
    for stack in ("", "cpu", "gpu"):
        done = launch(ROOT / "launch/train_grpo_tiny.sh", tmp_path, **machine, RFT_STACK=stack)
        assert done.returncode == 0, done.stderr
        found[stack] = done.stdout
    assert found[""] == found["cpu"] != found["gpu"]
