"""Fixtures of several modules."""

import os
import subprocess
from pathlib import Path

import pytest
import toy_checkout
from held_servers import Kind, corpus_of
from launching import body


@pytest.fixture
def checkout(tmp_path):
    return toy_checkout.make(tmp_path / "checkout")


@pytest.fixture
def start(tmp_path):
    """Start a launcher with the given body and run directory; returns the Popen."""
    started = []

    def popen(text: str, run_dir: Path, **environment: str) -> subprocess.Popen:
        environment |= {"PATH": os.environ["PATH"], "RFT_STACK": "cpu", "RUN_DIR": str(run_dir)}
        out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        # nohup, under which tests may run, would hand its deafness to SIGHUP on.
        command = ["env", "--default-signal", "bash", body(tmp_path, text, f"exp{len(started)}.sh")]
        started.append(subprocess.Popen(command, env=environment, start_new_session=True, **out))
        return started[-1]

    yield popen
    for process in started:
        process.terminate()
        process.wait(timeout=300)


@pytest.fixture
def hold(start, tmp_path):
    """A function that starts a launcher which holds a server of this kind."""
    corpus = corpus_of(tmp_path, "mark0 of nothing", "mark1 of all")

    def started(kind: Kind, **environment: str) -> subprocess.Popen:
        call = kind.name.lower()
        text = f'begin_run; start_{call}; wait_for_{call}; echo "${kind.name}_URL ${kind.name}_PID"; run sleep 300'
        environment = {f"START_{kind.name}": "1", "CORPUS": corpus} | environment
        return start(kind.prepare + text, tmp_path / "run", **environment)

    return started
