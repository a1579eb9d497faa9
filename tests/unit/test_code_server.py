"""The code server with real sandboxes: verdicts, refusals, numbers."""

from contextlib import suppress

import pytest
from code_servers import ADD, body, serving

from rft.code_server import PROGRAM_CHARACTERS, limits


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server"), "--workers", "4") as served:
        yield served


def test_verdicts_stand_in_the_order_of_the_tests(server):
    tests = [
        "assert add(1, 2) == 3",
        "assert add(1, 2) == 4",
        "total = add(2, 2)\nassert total == 4",
        "assert add() == 0",
    ]
    got = server.ask("/test_program", body(tests=tests)).json()
    assert got["results"] == [1, 0, 1, 0] and got["causes"] == ["passed", "failed", "passed", "error"]
    assert len(got["runtimes"]) == 4 and all(0 <= each < 5 for each in got["runtimes"])
    assert got["isolation"] == server.ask("/health").json()["isolation"] != "none"


def test_input_and_output(server):
    tests = [{"input": "3\n", "output": "6\n"}, {"input": "4\n", "output": "9\n"}]
    got = server.ask("/test_program_stdio", body("print(2 * int(input()))", tests)).json()
    assert got["results"] == [1, 0] and got["causes"] == ["passed", "failed"]


def test_a_program_that_is_late_in_every_test_does_not_keep_its_turn(server):
    tests = [{"input": "", "output": ""}] * 30
    got = server.ask("/test_program_stdio", body("while True: pass", tests, max_execution_time=0.05)).json()
    assert got["results"] == [0] * 30 and got["causes"] == ["timeout"] * 30
    assert sum(seconds > 0 for seconds in got["runtimes"]) < 15


PROGRAMS = {
    "no Python": "def add(a, b) return",
    "NUL": ADD + "\0",
    "a lone surrogate": ADD + "'\ud800'",
    "too long": "#" * (PROGRAM_CHARACTERS + 1),
}


@pytest.mark.parametrize("path", ["/test_program", "/test_program_stdio"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_whatever_the_model_writes_gets_a_verdict(server, path, program):
    tests = [{"input": "", "output": ""}] if path.endswith("stdio") else ["assert add(1, 2) == 3"]
    got = server.ask(path, body(program, tests))
    assert (got.status_code, got.json()["results"], got.json()["causes"]) == (200, [0], ["compile_error"])


MISUSE = [
    *[(f"time {value}", f'{{"program": "", "tests": ["1"], "max_execution_time": {value}}}', 422)
      for value in ("NaN", "Infinity", "-1", "0", "1e9", "1e999", '"5"', "true", "null", "[5]")],
    ("all times together", body(tests=["1"] * 1000, max_execution_time=60), 422),
    ("no tests", body(tests=[]), 422),
    ("many tests", body(tests=["1"] * (limits.TESTS + 1)), 422),
    ("tests as text", body(tests="assert True"), 422),
    ("tests of numbers", body(tests=[1]), 422),
    ("a long test", body(tests=["#" * (limits.TEXT_CHARACTERS + 1)]), 422),
    ("NUL in a test", body(tests=["1\0"]), 422),
    ("a lone surrogate in a test", body(tests=["'\ud800'"]), 422),
    ("NUL in the setup", body(setup="\0"), 422),
    ("no name", body(entry_point="add; import os"), 422),
    ("program as bytes", body(program=[1, 2]), 422),
    ("an unknown field", body(timeout=3), 422),
    ("no program", '{"tests": ["1"]}', 422),
    ("another type", "[]", 422),
    ("no JSON", "{", 422),
    ("nothing", b"", 422),
    ("invalid UTF-8", b'{"program": "\xff", "tests": ["1"]}', 400),
    ("deep JSON", "[" * 100_000, 400),
    ("a large body", b" " * (limits.BODY_BYTES + 1), 413),
]  # fmt: skip


@pytest.mark.parametrize("sent, status", [case[1:] for case in MISUSE], ids=[case[0] for case in MISUSE])
def test_misuse_is_refused(server, sent, status):
    got = server.ask("/test_program", sent)
    assert got.status_code == status and len(got.content) < 4000
    assert status == 413 or got.json()["cause"]  # of a body too large, the framework says so in plain text


def test_other_kinds_of_misuse(server):
    assert server.ask("/test_program").status_code == 405
    assert server.ask("/execute", '{"code": "print(1)"}').status_code == 404
    assert server.ask("/test_program", body(), Content_Type="text/plain").status_code == 422
    stdio = [{"input": 1, "output": ""}], [{"input": ""}], [{"input": "", "output": "", "more": 1}]
    assert [server.ask("/test_program_stdio", body(tests=tests)).status_code for tests in stdio] == [422] * 3


def test_a_body_without_end_is_not_read_into_memory(server):
    """100 MB in chunks: refused after the limit, and the server's memory has not grown by what was sent."""

    def megabytes():
        for _ in range(100):
            yield b" " * (1 << 20)

    before = server.numbers()["process_resident_memory_bytes",]
    with suppress(OSError):  # the server closes before all is sent
        assert server.ask("/test_program", megabytes()).status_code == 413
    assert server.numbers()["process_resident_memory_bytes",] - before < 4 * limits.BODY_BYTES
    assert server.numbers()["code_server_requests_total", "/test_program", "413"] >= 1


def test_what_is_counted(server):
    before = server.numbers()
    server.ask("/test_program", body(tests=["assert add(1, 2) == 3", "assert add(1, 2) == 4"]))
    server.ask("/test_program", body(ADD + "while True: pass", max_execution_time=0.1))
    after = server.numbers()

    def grown(*key):
        return after[key] - before.get(key, 0)

    assert grown("code_server_requests_total", "/test_program", "200") == 2
    assert grown("code_server_request_seconds_count", "/test_program") == grown("code_server_queue_seconds_count") == 2
    causes = {cause: grown("code_server_tests_total", cause) for cause in ("passed", "failed", "timeout")}
    assert causes == {"passed": 1, "failed": 1, "timeout": 1}
    assert grown("code_server_sandbox_starts") >= 2
    assert grown("code_server_kills_total", "timeout") == 1 and after["code_server_running",] == 0
