"""Attacks 65 to 70: the server itself, by what is sent, how it is sent, and how much at once."""

import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import host_watch
import pytest
import served

SOUND = {"program": "def f(x):\n    return x", "tests": ["assert f(1) == 1"], "max_execution_time": 1.0}
REFUSED = {
    "a million tests": SOUND | {"tests": ["assert f(1) == 1"] * 10**6},
    "no test": SOUND | {"tests": []},
    "a test that is no text": SOUND | {"tests": [1]},
    "tests that are text": SOUND | {"tests": "assert f(1) == 1"},
    "a program that is no text": SOUND | {"program": ["def f(x): return x"]},
    "no program": {"tests": SOUND["tests"]},
    "a year": SOUND | {"max_execution_time": 1e9},
    "no time": SOUND | {"max_execution_time": 0},
    "less than no time": SOUND | {"max_execution_time": -1},
    "a time that is no number": SOUND | {"max_execution_time": float("nan")},
    "endless time": SOUND | {"max_execution_time": float("inf")},
    "a time in words": SOUND | {"max_execution_time": "1"},
    "true as a time": SOUND | {"max_execution_time": True},
    "a NUL in a test": SOUND | {"tests": ["assert f('\0') == 1"]},
    "a NUL in the setup": SOUND | {"setup": "\0"},
    "another field": SOUND | {"results": [1]},
    "no object": [],
    "nothing": None,
}
BODIES = {
    "no JSON": b"{",
    "invalid UTF-8": b'{"program": "\xff\xfe", "tests": ["assert f(1) == 1"]}',
    "an empty body": b"",
    "nested arrays": b"[" * 100_000,
    "a number of a million digits": b'{"program": "", "tests": [], "max_execution_time": ' + b"9" * 10**6 + b"}",
}
ZERO = {
    "a NUL in the program": "def f(x):\n    return 1\n\0",
    "a lone surrogate in the program": "def f(x):\n    return '\ud800'",
    "an encoding that lies": "# -*- coding: rot13 -*-\nqrs s(k):\n    erghea k",
    "an empty program": "",
    "a byte order mark inside": "def f(x):\n    \ufeffreturn 1",
}
SLOW = "import time\ndef f(x):\n    time.sleep({seconds})\n    return x"
BUSY = """\
import time
def f(x):
    end = time.process_time() + {seconds}
    while time.process_time() < end:
        pass
    return x
"""


@pytest.mark.parametrize("what", REFUSED)
def test_65_a_request_beyond_the_limits_is_refused(server, what):
    status, answer = server.post("/test_program", REFUSED[what])
    assert 400 <= status < 500, answer
    assert len(str(answer)) < 10_000
    assert server.honest() == (200, served.HONEST_RESULTS)


def test_65_a_program_of_100_mb_is_refused(server):
    """The answer may be there before the body is sent; a client that goes on sending may meet a closed connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=host_watch.HANG) as sent:
        sent.sendall(b"POST /test_program HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        sent.sendall(b"Content-Length: 100000000\r\n\r\n")
        sent.sendall(b'{"program": "' + b"#" * 1000)
        assert b" 413 " in sent.recv(4096).split(b"\r\n")[0]
    assert server.honest() == (200, served.HONEST_RESULTS)


@pytest.mark.parametrize("what", BODIES)
def test_66_a_body_that_is_no_request_is_refused(server, what):
    status, answer = server.post("/test_program", BODIES[what])
    assert 400 <= status < 500, answer
    assert server.honest() == (200, served.HONEST_RESULTS)


@pytest.mark.parametrize("what", ZERO)
def test_66_a_program_that_is_no_python_fails(server, what):
    status, answer = server.post("/test_program", SOUND | {"program": ZERO[what], "tests": ["assert f(1) == 1"]})
    assert 400 <= status < 500 or (status, answer["results"]) == (200, [0])
    assert server.honest() == (200, served.HONEST_RESULTS)


def test_67_clients_that_send_nothing_or_half_keep_nobody_waiting(server):
    head = b"POST /test_program HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"
    parts = [b"", b"POST", head, head + b"\r\n", head + b"\r\n" + b'{"program": "', b"\xff" * 100]
    open_ones = []
    try:
        for part in parts * 20:
            made = socket.create_connection(("127.0.0.1", server.port), timeout=host_watch.HANG)
            made.sendall(part)
            open_ones.append(made)
        for made in open_ones[::2]:
            made.shutdown(socket.SHUT_WR)
        assert server.honest() == (200, served.HONEST_RESULTS)
    finally:
        for made in open_ones:
            made.close()
    server.nothing_left()


def sent_only(server, body: dict) -> socket.socket:
    """The connection of a request whose answer nobody has read."""
    data = json.dumps(body).encode()
    made = socket.create_connection(("127.0.0.1", server.port), timeout=host_watch.HANG)
    head = (
        f"POST /test_program HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    )
    made.sendall(head.encode() + b"\r\n" + data)
    return made


def test_68_a_client_that_has_gone_cancels_its_job(server):
    program = served.MARKED + SLOW.replace("{seconds}", "1000")
    body = SOUND | {"program": program, "tests": ["assert f(1) == 1"] * 50, "max_execution_time": 30.0}
    connections = [sent_only(server, body) for _ in range(24)]  # those that run, and as many that wait
    host_watch.soon(lambda: len(host_watch.marked()) >= 12, "the jobs do not start")
    for made in connections:
        made.close()
    host_watch.soon(lambda: not host_watch.marked(), "a job runs for nobody")
    assert server.honest() == (200, served.HONEST_RESULTS)
    server.nothing_left()


def test_69_all_of_128_requests_at_once_are_answered(server):
    """Those that wait lose none of their time: 0.3 s of CPU each within 1 s, behind a hundred others."""
    program = BUSY.replace("{seconds}", "0.3")

    def ask(number):
        status, answer = server.post(
            "/test_program", SOUND | {"program": program, "tests": [f"assert f({number}) == {number}"]}, seconds=300
        )
        return status, answer.get("results", answer)

    with ThreadPoolExecutor(128) as threads:
        assert list(threads.map(ask, range(128))) == [(200, [1])] * 128
    server.nothing_left()


def test_70_a_verdict_does_not_depend_on_the_load(server):
    """0.6 of 1 s of CPU time pass and 1.5 s do not, idle and with every core and slot busy."""

    def verdicts():
        found = []
        for seconds in ("0.6", "1.5"):
            _, answer = server.post(
                "/test_program", SOUND | {"program": BUSY.replace("{seconds}", seconds)}, seconds=300
            )
            found += list(zip(answer["results"], answer["causes"], strict=True))
        return found

    idle = verdicts()
    ended = threading.Event()

    def load():
        while not ended.is_set():
            server.post("/test_program", SOUND | {"program": BUSY.replace("{seconds}", "0.5")}, seconds=300)

    threads = [threading.Thread(target=load) for _ in range(4 * (os.cpu_count() or 1))]
    for thread in threads:
        thread.start()
    try:
        begin = time.monotonic()
        busy = verdicts()
        print(f"{time.monotonic() - begin:.1f} s under load")
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert idle == busy == [(1, "passed"), (0, "timeout")]
