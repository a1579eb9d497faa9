"""Starts a launcher in an environment of the test's own."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Stands for every command of the pipeline but what reads options, the guard and what makes a session: this is about the
# shell, not what it runs.
STUB = f"""#!/bin/bash
[[ $1 != -c ]] || exit 0  # whether it runs
case "$1 $3" in
"-IS "* | *rft.options.command | *rft.runs.guard | *rft.runs.launched) exec {sys.executable} "$@" ;;
esac
echo "${{*:2}}" >>"$CALLS"
case $2 in openrlhf*) exit "$TRAINING" ;; rft.runs.preflight) exit "$PREFLIGHT_STATUS" ;; esac
[[ $2 != rft.runs.best ]] || printf %s "$BEST"
case "$*" in *after=* | *format_after*) exit "$AFTER" ;; *runs.summary* | *sft_summary*) exit "$SUMMARY" ;; esac
"""


def launch(launcher, place, *arguments, **environment):
    """The finished process of a launcher run in the folder `place`, with its run directory there."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(place), "RFT_STACK": "cpu"} | environment
    environment = {"CLUSTER": "8xh100"} | environment  # whatever machine the tests run on
    environment = {"RUN_DIR": str(place / "run"), "CACHE_ROOT": str(place / "cache")} | environment
    return subprocess.run(
        ["bash", launcher, *arguments], env=environment, cwd=place, capture_output=True, text=True, timeout=120
    )


def body(tmp_path, text, name="exp.sh"):
    """A launcher of this content."""
    script = tmp_path / name
    script.write_text(f'source "{ROOT}/launch/common.sh"\n{text}\n')
    return script


def soon(found):
    """What `found()` returns once that is true; fails after a minute, which is a hang."""
    deadline = time.monotonic() + 60
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value
