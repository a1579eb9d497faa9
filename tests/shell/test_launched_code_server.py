"""The code server of a launch: it answers before anything asks it, and ends with the launch, however that ends."""

import json
import os
import signal
import socket
import subprocess
import urllib.request
from contextlib import closing

import pytest
from launching import ROOT, launch, soon

from rft.runs.memory import marked_processes

HOLD = 'begin_run; start_code_server; wait_for_code_server; echo "$CODE_SERVER_URL $CODE_SERVER_PID"; run sleep 300'
TINY = ROOT / "launch/train_grpo_tiny_code.sh"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def answering(launcher: subprocess.Popen) -> tuple[str, int]:
    """(URL, process id) of the server that a launcher with the body HOLD prints."""
    assert launcher.stdout.readline().startswith("run directory: ")
    said = launcher.stdout.readline()
    assert ", isolation " in said, said + launcher.stdout.read()
    url, pid = launcher.stdout.readline().split()
    return url, int(pid)


def test_a_launch_has_a_server_on_its_loopback_that_judges_and_stops_with_it(start, tmp_path):
    launcher = start(HOLD, tmp_path / "run", START_CODE_SERVER="yes")
    url, pid = answering(launcher)
    assert url.startswith("http://127.0.0.1:") and pid in marked_processes(str(tmp_path / "run"))
    asked = {"program": "def f(x):\n    return x", "tests": ["assert f(1) == 1", "assert f(1) == 2"]}
    request = urllib.request.Request(f"{url}/test_program", json.dumps(asked | {"max_execution_time": 5}).encode())
    request.add_header("Content-Type", "application/json")
    with DIRECT.open(request, timeout=120) as answer:
        assert json.load(answer)["results"] == [1, 0]
    launcher.terminate()
    assert launcher.wait(timeout=300) == 143
    assert marked_processes(str(tmp_path / "run")) == []
    assert "stopped" in (tmp_path / "run/code_server.log").read_text()


def test_a_launcher_that_is_killed_leaves_no_server(start, tmp_path):
    launcher = start(HOLD, tmp_path / "run", START_CODE_SERVER="1")
    answering(launcher)
    os.killpg(launcher.pid, signal.SIGKILL)
    soon(lambda: not marked_processes(str(tmp_path / "run")))


def test_a_server_that_dies_ends_the_launch_by_name(start, tmp_path):
    launcher = start(HOLD, tmp_path / "run", START_CODE_SERVER="1")
    _, pid = answering(launcher)
    os.kill(pid, signal.SIGKILL)
    out, _ = launcher.communicate(timeout=300)
    assert launcher.returncode == 1 and f"found:  the code server, process {pid} on " in out, out
    assert "interrupted by its watch" in out and "repair: read the end of " in out


def test_a_server_that_cannot_start_ends_the_launch_with_its_reason(start, tmp_path):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        launcher = start(HOLD, tmp_path / "run", START_CODE_SERVER="1", CODE_SERVER_PORT=str(port))
        out, _ = launcher.communicate(timeout=300)
    assert launcher.returncode == 1
    for text in (
        f"found 127.0.0.1:{port} not to be had",
        "error: no code server\n  found:  its process ",
        "  repair: ",
    ):
        assert text in out, out


def test_a_server_that_somebody_else_started_is_asked_and_left_alone(start, tmp_path):
    launcher = start(HOLD, tmp_path / "run", START_CODE_SERVER="1")
    url, pid = answering(launcher)
    environment = {"PATH": os.environ["PATH"], "RFT_STACK": "cpu", "CODE_SERVER_URL": url}
    text = f'source "{ROOT}/launch/common.sh"; start_code_server; wait_for_code_server; echo "$CODE_SERVER_PID"'
    done = subprocess.run(["bash", "-c", text], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith(f"code server: {url}, isolation ") and done.stdout.endswith("\n\n"), done.stderr
    os.kill(pid, 0)


def test_an_address_where_nothing_answers_ends_the_launch(tmp_path):
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [ROOT / ".venv/bin/python", "-m", "rft.runs.code_server", url, "--seconds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and f"wanted: an answer of {url}/health within 1 s" in done.stderr
    assert "or unset CODE_SERVER_URL" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"START_CODE_SERVER": "maybe"}, "START_CODE_SERVER=maybe"),
        ({"START_CODE_SERVER": "0"}, "START_CODE_SERVER=0 and no CODE_SERVER_URL"),
        (
            {"START_CODE_SERVER": "1", "CODE_SERVER_URL": "http://127.0.0.1:1"},
            "START_CODE_SERVER=1 and CODE_SERVER_URL=",
        ),
        ({"CODE_SERVER_PORT": "70000"}, "CODE_SERVER_PORT=70000"),
        ({"CODE_SERVER_PORT": "08"}, "CODE_SERVER_PORT=08"),
        ({"RECIPE": "tuned"}, "RECIPE=tuned EFFORT="),
    ],
)
def test_misuse_is_refused_before_anything_is_made(tmp_path, environment, found):
    for dry in ({}, {"DRY_RUN": "1"}):
        done = launch(TINY, tmp_path, **environment, **dry)
        assert done.returncode == 1 and not done.stdout and f"  found:  {found}" in done.stderr, done.stderr
        assert "  repair: " in done.stderr and not (tmp_path / "run").exists()
