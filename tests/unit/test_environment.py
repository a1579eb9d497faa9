"""What the stack reads while it is imported: set by launchers and by our commands alike, before torch is imported."""

import json
import os
import subprocess
import sys

import pytest
from own_modules import ROOT

from rft.record.environment import stack, variables

BARE = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
# Prints the environment where torch is imported first, and ends there.
AT_TORCH = """
import json, os, runpy, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(json.dumps(dict(os.environ)))
            sys.stdout.flush()
            os._exit(0)
sys.meta_path.insert(0, Finder())
sys.argv = sys.argv[1:]
sys.path.insert(0, os.getcwd())
if sys.argv[0].endswith(".py"):
    runpy.run_path(sys.argv[0], run_name="__main__")
else:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
COMMANDS = [f"eval/eval_{name}.py" for name in ("posthoc", "model_sweep", "baseline_s0", "lm_eval")]
COMMANDS += ["benchmarks.parity", "benchmarks.decode", "benchmarks.actor"]


def test_the_file_lists_each_variable_once():
    lines = [line.split()[1] for line in (ROOT / "launch/stack.env").read_text().splitlines() if line[0] != "#"]
    names = [line.partition("=")[0] for line in lines]
    assert len(names) == len(set(names)) and set(names) == set(variables("cpu"))
    assert set(variables("gpu")) < set(variables("cpu"))


@pytest.mark.parametrize("chosen", ["cpu", "gpu"])
def test_a_launcher_and_a_command_set_the_same(chosen):
    given = {"OMP_NUM_THREADS": "7", "DO_NOT_TRACK": ""}  # what is set stays, an empty value is none
    done = subprocess.run(
        ["bash", "-c", ". launch/common.sh; env -0"],
        cwd=ROOT,
        env=BARE | given | {"RFT_STACK": chosen},
        capture_output=True,
        text=True,
        check=True,
    )
    found = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    wanted = variables(chosen) | {"OMP_NUM_THREADS": "7"}
    assert {name: found.get(name) for name in variables("cpu")} == {n: wanted.get(n) for n in variables("cpu")}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_sets_them_before_torch_is_imported(command):
    done = subprocess.run(
        [sys.executable, "-c", AT_TORCH, command, "--help"],
        cwd=ROOT,
        env=BARE | {"OMP_NUM_THREADS": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    wanted = variables(stack()) | {"OMP_NUM_THREADS": "7"}
    assert {name: found.get(name) for name in wanted} == wanted
