"""What a launch does for its retriever beyond what every server gets: its corpus, address, GPUs and slow answers."""

import asyncio
import json
import os
import signal
import subprocess
import time

import pytest
from held_servers import RETRIEVER, answering, corpus_of
from launching import ROOT, body

from rft.retriever.client import Client


def sourced(tmp_path, text: str, **environment: str) -> subprocess.CompletedProcess:
    """A launcher of this content that has ended."""
    environment = {"PATH": os.environ["PATH"], "RFT_STACK": "cpu", "RUN_DIR": str(tmp_path / "run")} | environment
    (tmp_path / "run").mkdir(exist_ok=True)
    command = ["bash", body(tmp_path, text)]
    return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)


def test_a_launch_says_what_its_retriever_does_until_it_answers(hold):
    launcher = hold(RETRIEVER)
    said = [launcher.stdout.readline() for _ in range(2)]
    assert said[1].startswith("retriever: ") and " of " in said[1], said


SHOW = "use_retriever; begin_retriever() { :; }; start_retriever; declare -px RETRIEVER_URL NO_PROXY no_proxy"


@pytest.mark.parametrize(
    ("environment", "url", "hosts"),
    [
        ({}, r"http://127.0.0.1:", "127.0.0.1"),
        ({"NO_PROXY": "a.example"}, r"http://127.0.0.1:", "a.example,127.0.0.1"),
        ({"no_proxy": "127.0.0.1,b", "NO_PROXY": "c"}, r"http://127.0.0.1:", "127.0.0.1,b"),
        ({"RAY_ADDRESS": "127.0.0.1:6379"}, r"http://127.0.0.1:", "127.0.0.1"),
        ({"RETRIEVER_HOST": "::1", "RETRIEVER_PORT": "8123"}, "http://[::1]:8123", "::1"),
        ({"RETRIEVER_URL": "http://node7.example:8000/"}, "http://node7.example:8000/", "node7.example"),
    ],
)
def test_the_retrievers_exact_host_is_asked_without_a_proxy(tmp_path, environment, url, hosts):
    corpus = corpus_of(tmp_path, "a")
    done = sourced(tmp_path, SHOW, CORPUS=corpus, **environment)
    shown = dict(line.removeprefix("declare -x ").split("=", 1) for line in done.stdout.splitlines())
    assert shown["RETRIEVER_URL"].startswith(f'"{url}'), done.stderr
    assert shown["NO_PROXY"] == shown["no_proxy"] == f'"{hosts}"'


def test_a_retriever_of_a_cluster_listens_beyond_the_loopback_with_a_token(tmp_path):
    """At a second address of the loopback, which needs no network: by its rule every other address has a token."""
    corpus = corpus_of(tmp_path, "a")
    text = 'use_retriever; start_retriever; printf "%s\\n" "${RETRIEVER_TOKEN:-none}"'
    assert sourced(tmp_path, text, CORPUS=corpus).stdout == "none\n"
    token = sourced(tmp_path, text, CORPUS=corpus, RETRIEVER_HOST="0.0.0.0").stdout.strip()
    assert len(token) >= 32
    kept = sourced(tmp_path, text, CORPUS=corpus, RETRIEVER_HOST="0.0.0.0", RETRIEVER_TOKEN="t" * 16).stdout
    assert kept == f"{'t' * 16}\n"


PLACES = """use_retriever
begin_service() { shift; printf "%s\n" "$*"; }
start_retriever
echo "${CUDA_VISIBLE_DEVICES-all}"
"""
NO_PYTHON = {"RFT_STACK": "gpu", "RETRIEVER_HOST": "127.0.0.1", "RETRIEVER_PORT": "8000"}  # no .venv-gpu is asked


@pytest.mark.parametrize(
    ("environment", "retriever", "training"),
    [
        ({}, "env CUDA_VISIBLE_DEVICES= ", "all"),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2"}, "env CUDA_VISIBLE_DEVICES= ", "0,1,2"),
        ({"RETRIEVER_GPUS": "all"}, "", "all"),
        ({"RETRIEVER_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, "env CUDA_VISIBLE_DEVICES=2,3 ", "0,1"),
        ({"RETRIEVER_GPUS": "1", "CUDA_VISIBLE_DEVICES": "10,1,11"}, "env CUDA_VISIBLE_DEVICES=1 ", "10,11"),
    ],
)
def test_gpus_of_the_retriever_are_not_the_trainings(tmp_path, environment, retriever, training):
    corpus = corpus_of(tmp_path, "a")
    done = sourced(tmp_path, PLACES, **{"CORPUS": corpus} | NO_PYTHON | environment)
    command, visible = done.stdout.splitlines()
    assert command.startswith(f"{retriever}{ROOT}/.venv") and " -m rft.retriever --corpus " in command, done.stderr
    assert visible == training


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"RETRIEVER_GPUS": "3", "CUDA_VISIBLE_DEVICES": "0,1"}, "RETRIEVER_GPUS=3, here: 0 1"),
        ({"RETRIEVER_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "0,1"}, "RETRIEVER_GPUS=0,1, here: 0 1"),
        ({"RETRIEVER_GPUS": "1", "CUDA_VISIBLE_DEVICES": ""}, "RETRIEVER_GPUS=1, here: none"),
        ({"RETRIEVER_GPUS": "1", "RAY_ADDRESS": "127.0.0.1:6379"}, "RETRIEVER_GPUS and RAY_ADDRESS"),
    ],
)
def test_gpus_that_are_not_to_be_had_are_refused(tmp_path, environment, found):
    done = sourced(tmp_path, "use_retriever", CORPUS=corpus_of(tmp_path, "a"), **{"RFT_STACK": "gpu"} | environment)
    assert done.returncode == 1 and f"  found:  {found}\n" in done.stderr and "  repair: " in done.stderr


def test_a_resumed_run_is_refused_another_corpus_and_takes_the_same(hold, tmp_path):
    url, _ = answering(hold(RETRIEVER), RETRIEVER)
    run = tmp_path / "former"
    run.mkdir()

    async def health():
        async with Client(url) as client:
            return await client.health()

    found = asyncio.run(health())
    command = [ROOT / ".venv/bin/python", "-m", "rft.runs.retriever", url, "--run-dir", run]
    for former, said in (
        ({}, None),
        (found, None),
        (found | {"passages": 1, "corpus_name": "other.jsonl"}, None),  # what the hash decides
        (found | {"corpus": "0" * 64}, f"  found:  corpus {found['corpus']}\n  wanted: corpus {'0' * 64}, as at"),
        (found | {"index": "dense/flat", "encoder": "e5"}, "  wanted: index dense/flat, as at"),
    ):
        (run / "run.json").write_text(json.dumps({"retriever": former} if former else {}))
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == (1 if said else 0), done.stderr
        assert (said or "") in done.stderr and ("ALLOW_CHANGED=1" in done.stderr) == bool(said)
    allowed = os.environ | {"ALLOW_CHANGED": "1"}
    assert subprocess.run(command, cwd=ROOT, env=allowed, capture_output=True, timeout=120).returncode == 0


def test_slow_answers_take_their_time_and_are_never_empty(hold):
    """The server is stopped for three seconds while it is asked."""
    url, pid = answering(hold(RETRIEVER), RETRIEVER)

    async def asked() -> tuple[list, float]:
        async with Client(url) as client:
            await client.health()
            os.kill(pid, signal.SIGSTOP)
            begun = time.monotonic()
            try:
                asking = asyncio.create_task(client.retrieve(["mark1"], 1))
                await asyncio.sleep(3)
                assert not asking.done()
            finally:
                os.kill(pid, signal.SIGCONT)
            return await asking, time.monotonic() - begun

    ((passage,),), seconds = asyncio.run(asked())
    assert passage.id == "1" and passage.text == "mark1 of all" and seconds >= 3


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "error: the retriever has no corpus"),
        ({"CORPUS": "corpus.jsonl"}, " -m rft.retriever --corpus "),
    ],
)
def test_any_launcher_can_have_a_retriever(tmp_path, environment, said):
    corpus_of(tmp_path, "a")
    text = 'begin_service() { echo "command: ${*: -10}"; }; start_retriever'
    done = sourced(tmp_path, text, START_RETRIEVER="1", **environment)
    assert said in done.stdout + done.stderr


def test_a_corpus_that_is_not_made_is_named_and_not_waited_for(tmp_path):
    text = "use_retriever; start_retriever; wait_for_retriever"
    done = sourced(tmp_path, text, CORPUS="none.jsonl")
    assert done.returncode == 1 and f"error: no corpus\n  found:  no file {tmp_path}/none.jsonl" in done.stderr
