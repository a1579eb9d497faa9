"""Preflight against the real trainer and a real Ray cluster."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rft.options import command
from rft.runs.preflight import software
from rft.runs.preflight.lines import GO

pytestmark = pytest.mark.stack
ROOT = Path(__file__).resolve().parents[2]
WORDS = [[], ["--num_ep", "3", "--target_modules", "q_proj", "--eps_clip_low_high", "0.1", "0.2"]]
# Runs the trainer's own main up to the end of its parsing, for each list of words, and prints what it has parsed.
PARSE = """
import argparse, json, runpy, sys
real = argparse.ArgumentParser.parse_args
def show(self, *words):
    print(json.dumps(vars(real(self, *words))))
    raise SystemExit(0)
argparse.ArgumentParser.parse_args = show
for words in json.loads(sys.argv[1]):
    sys.argv = ["train", *words]
    try:
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")
    except SystemExit:
        pass
"""


def test_options_and_defaults_are_the_trainers():
    command_line = [sys.executable, "-c", PARSE, json.dumps(WORDS)]
    done = subprocess.run(command_line, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    for words, line in zip(WORDS, done.stdout.splitlines()[-len(WORDS) :], strict=True):
        theirs = json.loads(line)
        ours = json.loads(json.dumps(vars(argparse.ArgumentParser.parse_args(command.trainer_parser(), words))))
        for parsed in (theirs, ours):
            parsed.pop("wandb_run_name")  # the time of day
        assert ours == theirs


def test_nodes_of_a_real_cluster():
    """A head started by hand, as RAY_ADDRESS's would be: preflight compares the tree on its only node."""
    script = (
        "import json, ray; from rft.runs.preflight.lines import software; "
        "context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False); import os; "
        "os.environ['RAY_ADDRESS'] = context.address_info['gcs_address']; "
        "print(json.dumps([list(line) for line in software.check_nodes()])); ray.shutdown()"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", software.OWN_CLUSTER)}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [["Ray nodes", GO, "1, all equal", ""]]
