"""Starts a launcher in an environment of the test's own."""

import os
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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
