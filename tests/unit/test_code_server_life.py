"""The life of a code server with real sandboxes: its start, its queue, clients that leave, its end."""

import asyncio
import json
import resource
import signal
import socket
import subprocess
import sys
from urllib.parse import urlsplit

import aiohttp
import pytest
from code_servers import ADD, BOUND, ROOT, alive, body, command, descendants, environment, raw, serving, until

from rft.code_server.client import Client
from rft.code_server.queue import Full, Queue, Stopping

JSON = {"Content-Type": "application/json"}
SLEEP = "import time\ntime.sleep(1000)\n"
TOKEN = "0123456789abcdefgh"


@pytest.fixture
def narrow(tmp_path):
    """A server with one turn."""
    with serving(tmp_path, "--workers", "1") as served:
        yield served


async def asked_at_once(url: str, count: int) -> list:
    """Answers to programs that know a number of their own, asked for it and for the next one's."""
    async with Client(url) as client:
        return await asyncio.gather(
            *(
                client.test_program(f"def own(): return {n}", [f"assert own() == {n}", f"assert own() == {n + 1}"])
                for n in range(count)
            )
        )


def test_128_at_once_each_get_their_own_verdict(tmp_path):
    with serving(tmp_path) as server:
        answers = asyncio.run(asked_at_once(server.url, 128))
        health = server.ask("/health").json()
    assert [answer.results for answer in answers] == [[1, 0]] * 128
    assert health["running"] == health["waiting"] == 0


def test_the_time_in_the_queue_is_not_the_tests(narrow):
    """Each uses more than half of its time, and all but the first wait for longer than that."""
    busy = "import time\ndef busy():\n    while time.process_time() < 0.6:\n        pass\n    return 1"

    async def ask():
        async with Client(narrow.url) as client:
            tests = ["assert busy() == 1"]
            return await asyncio.gather(*(client.test_program(busy, tests, max_execution_time=1.0) for _ in range(3)))

    assert [answer.results for answer in asyncio.run(ask())] == [[1]] * 3


def test_a_client_that_has_gone_frees_its_turn(narrow):
    """One goes while its program runs, one while it waits; the next has the turn at once."""

    async def ask():
        async with aiohttp.ClientSession(trust_env=False) as session:
            asks = [
                asyncio.create_task(session.post(f"{narrow.url}/test_program", data=body(SLEEP), headers=JSON))
                for _ in range(2)
            ]
            await asyncio.to_thread(until, lambda: state("running", "waiting") == [1, 1])
            for task in asks:
                task.cancel()
            await asyncio.gather(*asks, return_exceptions=True)

    def state(*names):
        health = narrow.ask("/health").json()
        return [health[name] for name in names]

    asyncio.run(ask())
    until(lambda: state("running", "waiting") == [0, 0])
    assert narrow.ask("/test_program", body()).json()["results"] == [1]
    assert narrow.numbers()["code_server_kills_total", "client_gone"] == 2


def test_a_half_closed_connection_is_a_client_that_has_gone(narrow):
    with narrow.connection() as client:
        client.sendall(raw(body(SLEEP)))
        until(lambda: narrow.ask("/health").json()["running"] == 1)
        client.shutdown(socket.SHUT_WR)
        until(lambda: narrow.ask("/health").json()["running"] == 0)
        assert client.recv(1) == b""


@pytest.mark.parametrize("program", [ADD, SLEEP], ids=["idle", "running"])
def test_sigterm_leaves_no_process(narrow, program):
    with narrow.connection() as client:
        client.sendall(raw(body(program)))
        if program == SLEEP:
            until(lambda: narrow.ask("/health").json()["running"] == 1)
        else:
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        below = descendants(narrow.process.pid)
        assert below
        narrow.process.send_signal(signal.SIGTERM)
        assert narrow.process.wait(BOUND) == 0
        assert not alive(below)
        if program == SLEEP:
            assert client.recv(12) == b"HTTP/1.1 503"
    assert "Traceback" not in narrow.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_starts_ends_it(tmp_path, number):
    process = subprocess.Popen(
        command("--port", "0"), cwd=ROOT, env=environment(), stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        until(lambda: descendants(process.pid))
        below = descendants(process.pid)
        process.send_signal(number)
        said = process.communicate(timeout=BOUND)[1].decode()
        assert process.returncode in (-signal.SIGTERM, 130, 0) and "Traceback" not in said
        until(lambda: not alive(below))
    finally:
        process.kill()
        process.wait()


def test_a_server_that_is_killed_leaves_no_process(narrow):
    with narrow.connection() as client:
        client.sendall(raw(body(SLEEP)))
        until(lambda: narrow.ask("/health").json()["running"] == 1)
        below = descendants(narrow.process.pid)
        assert below
        narrow.process.kill()
        narrow.process.wait(BOUND)
        until(lambda: not alive(below))


def test_a_sandbox_that_cannot_be_started_is_no_verdict(narrow):
    """The server gets no further file: what is warm is used up, then the answer is 503, and with files it goes on."""
    pid = narrow.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)

    async def ask():
        async with aiohttp.ClientSession(trust_env=False) as session:
            answers = []
            for _ in range(30):
                async with session.post(f"{narrow.url}/test_program", data=body(), headers=JSON) as got:
                    answers.append((got.status, await got.json()))
                if len(answers) == 1:
                    resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, before[1]))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            return answers

    answers = asyncio.run(ask())
    assert (
        answers[-1][0] == 503
        and answers[-1][1]["cause"] == "sandbox"
        and "Too many open files" in answers[-1][1]["detail"]
    )
    assert all(answer["results"] == [1] for status, answer in answers if status == 200)
    assert {status for status, _ in answers} == {200, 503}
    assert narrow.ask("/test_program", body()).json()["results"] == [1]
    assert narrow.numbers()["code_server_failures_total", "sandbox"] == [status for status, _ in answers].count(503)


def test_without_isolation_every_answer_says_so(tmp_path):
    with serving(tmp_path, "--isolation", "none", "--allow-unsafe", "--tool") as served:
        assert served.ask("/test_program", body()).json()["isolation"] == "none"
        health = served.ask("/health").json()
        assert health["isolation"] == "none" and health["tool"] and health["why_not_higher"]
        got = served.ask("/execute", json.dumps({"code": "print(6 * 7)"})).json()
        assert got["output"].strip() == "42" and got["success"]
        assert "isolation none" in served.log.read_text()


def test_a_token_is_asked_for(tmp_path):
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(TOKEN + "\n")
    with serving(tmp_path, "--host", "0.0.0.0", "--token-file", str(file)) as served:
        for path in ("/health", "/metrics", "/nothing"):
            assert served.ask(path).status_code == 401
        for wrong in ("", TOKEN, f"Bearer {TOKEN}x", "Bearer é", f"Basic {TOKEN}"):
            assert served.ask("/test_program", body(), Authorization=wrong.encode()).status_code == 401
        assert served.ask("/test_program", body(), Authorization=f"Bearer {TOKEN}").json()["results"] == [1]
        assert TOKEN not in served.log.read_text()


REFUSED = [
    ("another host", ["--host", "0.0.0.0"], "without a token"),
    ("every IPv6 address", ["--host", "::"], "without a token"),
    ("a name", ["--host", "example.invalid"], "without a token"),
    ("no file", ["--token-file", "nowhere"], "nowhere"),
    ("a file for all", ["--token-file", "open"], "chmod 600"),
    ("an empty file", ["--token-file", "empty"], "empty; wanted a token"),
    ("a short token", ["--token-file", "short"], "16 printable characters"),
    ("no isolation", ["--isolation", "none"], "--allow-unsafe"),
    ("no worker", ["--workers", "0"], "wanted 1 to 1024"),
    ("no port", ["--port", "70000"], "wanted 0 to 65535"),
    ("an address of another machine", ["--host", "192.0.2.1", "--token-file", "good"], "not to be had"),
]


@pytest.mark.parametrize("arguments, said", [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_refused_at_the_start(tmp_path, arguments, said):
    for name, text, mode in (
        ("open", TOKEN, 0o644),
        ("empty", "", 0o600),
        ("short", "abc", 0o600),
        ("good", TOKEN, 0o600),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    done = subprocess.run(
        command(*arguments), cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=BOUND
    )
    assert done.returncode in (1, 2) and said in done.stderr and "Traceback" not in done.stderr


def test_a_port_in_use_is_one_message(narrow):
    port = urlsplit(narrow.url).port
    done = subprocess.run(
        command("--port", str(port)), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=BOUND
    )
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert f"127.0.0.1:{port}" in done.stderr and "--port" in done.stderr


@pytest.mark.parametrize(
    "module, without",
    [("serve", {"torch", "numpy", "ray", "vllm"}), ("client", {"torch", "numpy", "fastapi", "pydantic"})],
)
def test_little_is_imported(module, without):
    code = f"import sys, rft.code_server.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0 and not without & set(done.stdout.split())


def test_turns_go_round_in_order():
    async def run():
        queue, order = Queue(1, 3), []

        async def one(name):
            async with queue.turn():
                order.append(name)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(one(name)) for name in "abcd"]
        await asyncio.sleep(0)
        assert (queue.running, queue.waiting) == (1, 3)
        with pytest.raises(Full):
            await one("e")
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == ["a", "b", "d"] and (queue.running, queue.waiting) == (0, 0)

    asyncio.run(run())


def test_a_stopped_queue_turns_away_and_cancels():
    async def run():
        queue = Queue(1, 3)

        async def one():
            async with queue.turn():
                await asyncio.Event().wait()

        tasks = [asyncio.create_task(one()) for _ in range(3)]
        await asyncio.sleep(0)
        queue.stop()
        queue.stop()
        await asyncio.sleep(0.01)
        assert [task.done() for task in tasks] == [False, True, True]
        queue.cancel()
        ends = await asyncio.gather(*tasks, one(), return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError, Stopping, Stopping, Stopping]
        assert queue.running == queue.waiting == 0

    asyncio.run(run())
