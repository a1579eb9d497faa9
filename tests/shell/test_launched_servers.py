"""The servers of a launch: they answer before anything asks them, and end with the launch, however that ends."""

import json
import os
import signal
import socket
import subprocess
import urllib.request
from contextlib import closing

import pytest
from held_servers import CODE, RETRIEVER, Kind, answering
from launching import ROOT, launch, soon

from rft.runs.memory import marked_processes

KINDS = pytest.mark.parametrize("kind", [CODE, RETRIEVER], ids=lambda kind: kind.name)
TINY = ROOT / "launch/train_grpo_tiny_code.sh"
SEARCH = ROOT / "launch/train_grpo_tiny_search.sh"
SEARCH_20B = ROOT / "launch/train_grpo_20b_search.sh"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(url: str, kind: Kind) -> list:
    """What the server answers to `kind.asked`."""
    request = urllib.request.Request(url + kind.path, json.dumps(kind.asked).encode())
    request.add_header("Content-Type", "application/json")
    with DIRECT.open(request, timeout=120) as answer:
        found = json.load(answer)
    return found["results"] if "results" in found else [each["document"]["id"] for each in found["result"][0]]


@KINDS
def test_a_launch_has_a_server_on_its_loopback_that_answers_and_stops_with_it(hold, tmp_path, kind):
    launcher = hold(kind, **{f"START_{kind.name}": "yes"})
    url, pid = answering(launcher, kind)
    assert url.startswith("http://127.0.0.1:") and pid in marked_processes(str(tmp_path / "run"))
    assert ask(url, kind) == kind.found
    launcher.terminate()
    assert launcher.wait(timeout=300) == 143
    assert marked_processes(str(tmp_path / "run")) == []
    assert "stopped" in (tmp_path / f"run/{kind.name.lower()}.log").read_text()


@KINDS
def test_a_launcher_that_is_killed_leaves_no_server(hold, tmp_path, kind):
    launcher = hold(kind)
    answering(launcher, kind)
    os.killpg(launcher.pid, signal.SIGKILL)
    soon(lambda: not marked_processes(str(tmp_path / "run")))


@KINDS
def test_a_server_that_dies_ends_the_launch_by_name(hold, kind):
    launcher = hold(kind)
    _, pid = answering(launcher, kind)
    os.kill(pid, signal.SIGKILL)
    out, _ = launcher.communicate(timeout=300)
    assert launcher.returncode == 1 and f"found:  the {kind.what}, process {pid} on " in out, out
    assert "interrupted by its watch" in out and "repair: read the end of " in out
    assert "then bash launch/resume.sh " in out


def test_a_server_that_hangs_ends_the_launch_by_name_and_is_gone(hold, tmp_path):
    """Stopped: its process is there, its port accepts, nothing answers. The code server has the same watch."""
    launcher = hold(RETRIEVER)
    _, pid = answering(launcher, RETRIEVER)
    os.kill(pid, signal.SIGSTOP)
    out, _ = launcher.communicate(timeout=300)
    assert launcher.returncode == 1 and f"found:  the retriever, process {pid} on " in out, out
    assert ", has not answered for 60 s" in out and "then bash launch/resume.sh " in out
    assert marked_processes(str(tmp_path / "run")) == []


@KINDS
def test_a_server_that_cannot_start_ends_the_launch_with_its_reason(hold, kind):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        launcher = hold(kind, **{f"{kind.name}_PORT": str(port)})
        out, _ = launcher.communicate(timeout=300)
    assert launcher.returncode == 1
    for text in (
        f"found 127.0.0.1:{port} not to be had",
        f"error: no {kind.what}\n  found:  its process ",
        "  repair: ",
    ):
        assert text in out, out


@KINDS
def test_a_server_that_somebody_else_started_is_asked_and_left_alone(hold, kind):
    url, pid = answering(hold(kind), kind)
    environment = {"PATH": os.environ["PATH"], "RFT_STACK": "cpu", f"{kind.name}_URL": url}
    call = kind.name.lower()
    text = f'source "{ROOT}/launch/common.sh"; {kind.prepare}start_{call}; wait_for_{call}; echo "${kind.name}_PID"'
    done = subprocess.run(["bash", "-c", text], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith(f"{kind.what}: {url}, ") and done.stdout.endswith("\n\n"), done.stderr
    os.kill(pid, 0)


@KINDS
def test_an_address_where_nothing_answers_ends_the_launch(kind):
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [ROOT / ".venv/bin/python", "-m", f"rft.runs.{kind.name.lower()}", url, "--seconds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and f"wanted: an answer of {url}/health within 1 s" in done.stderr
    assert f"or unset {kind.name}_URL" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("launcher", "environment", "found"),
    [
        (TINY, {"START_CODE_SERVER": "maybe"}, "START_CODE_SERVER=maybe"),
        (TINY, {"START_CODE_SERVER": "0"}, "START_CODE_SERVER=0 and no CODE_SERVER_URL"),
        (
            TINY,
            {"START_CODE_SERVER": "1", "CODE_SERVER_URL": "http://127.0.0.1:1"},
            "START_CODE_SERVER=1 and CODE_SERVER_URL=",
        ),
        (TINY, {"CODE_SERVER_PORT": "70000"}, "CODE_SERVER_PORT=70000"),
        (TINY, {"CODE_SERVER_PORT": "08"}, "CODE_SERVER_PORT=08"),
        (TINY, {"RECIPE": "tuned"}, "RECIPE=tuned EFFORT="),
        (SEARCH, {"START_RETRIEVER": "0"}, "START_RETRIEVER=0 and no RETRIEVER_URL"),
        (
            SEARCH,
            {"START_RETRIEVER": "1", "RETRIEVER_URL": "http://127.0.0.1:1"},
            "START_RETRIEVER=1 and RETRIEVER_URL=",
        ),
        (SEARCH, {"RETRIEVER_PORT": "70000"}, "RETRIEVER_PORT=70000"),
        (SEARCH, {"RETRIEVER_INDEX": "words"}, "RETRIEVER_INDEX=words"),
        (SEARCH, {"RETRIEVER_URL": "127.0.0.1:8000"}, "RETRIEVER_URL=127.0.0.1:8000"),
        (SEARCH_20B, {"RETRIEVER_KIND": "ivf"}, "RETRIEVER_KIND=ivf"),
        (SEARCH_20B, {"RFT_AGENT_PROTOCOL": "xml"}, "RFT_AGENT_PROTOCOL=xml"),
        (SEARCH_20B, {"RFT_AGENT_MAX_TURNS": "0"}, "RFT_AGENT_MAX_TURNS=0"),
        (SEARCH_20B, {"RFT_AGENT_OBSERVATION_TOKENS": "5e2"}, "RFT_AGENT_OBSERVATION_TOKENS=5e2"),
    ],
)
def test_misuse_is_refused_before_anything_is_made(tmp_path, launcher, environment, found):
    for dry in ({}, {"DRY_RUN": "1"}):
        done = launch(launcher, tmp_path, **environment, **dry)
        assert done.returncode == 1 and not done.stdout and f"  found:  {found}" in done.stderr, done.stderr
        assert "  repair: " in done.stderr and not (tmp_path / "run").exists()
