"""The reward of code tasks, loaded the way OpenRLHF loads it, with a real code server, and with servers that fail."""

import asyncio
import contextlib
import importlib.util
import json
import socket
import struct
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from code_servers import serving

from rft.code.extract import METHODS
from rft.code_server.client import Client, CodeServerError
from rft.hooks import rewards
from rft.hooks.numeric_logs import numeric_only, text_only

pytest.importorskip("torch")

REWARD_FILE = Path(__file__).resolve().parents[2] / "rewards" / "reward_func_code.py"
PROMPT = "<|start|>user<|message|>Write f.<|end|><|start|>assistant"
THOUGHT = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>{}<|return|>"
NUMBERS = {
    "correctness",
    "pass_rate",
    "has_program",
    "extraction_method",
    "compile_error",
    "test_error",
    "test_timeout",
    "test_killed",
    "test_unsupported",
    "slowest_test_seconds",
    "unsafe_verdict",
    "truncated_response",
    "label_invalid",
}
OPTIONS = ("RFT_CODE_PASS_RATE_THRESHOLD", "RFT_CODE_SECONDS", "RFT_CODE_ALLOW_UNSAFE", "CODE_SERVER_TOKEN")


def label(*tests, kind="mbpp", setup="", entry_point="f"):
    return json.dumps({"kind": kind, "setup": setup, "tests": list(tests), "entry_point": entry_point})


def program(code):
    return FINAL.format(f"Here:\n```python\n{code}\n```")


ONE_MORE = label("assert f(1) == 2", "assert f(2) == 3", "assert f(-1) == 0")
RIGHT, PARTLY = program("def f(x):\n    return x + 1"), program("def f(x):\n    return max(x, 0) + 1")


@pytest.fixture
def load(monkeypatch):
    """The reward file as openrlhf/utils/agent.py loads it, with an environment; its client gives up after a second."""
    loops = []

    def loaded(url, **options):
        for name in OPTIONS:
            monkeypatch.delenv(name, raising=False)
        for name, value in {"CODE_SERVER_URL": url, **options}.items():
            monkeypatch.setenv(name, value)
        spec = importlib.util.spec_from_file_location("reward_func", REWARD_FILE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.Client = partial(Client, patience=1.0)
        loops.append(module)
        return module

    yield loaded
    for module in loops:
        if module._client:
            asyncio.run_coroutine_threadsafe(module._client.close(), module._loop()).result()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server"), "--workers", "2") as served:
        yield served


def ask(module, response, tests=ONE_MORE, prompt=PROMPT):
    """Reward, score, and the logged numbers, as the trainer reads them."""
    found = rewards.merge([module.reward_func([prompt + response], [prompt], [tests])], "reward", "here")
    numbers = numeric_only(found["extra_logs"])
    assert numbers.keys() == NUMBERS
    return found["reward"], found["scores"], numbers


# response: reward, pass rate, and what else is logged
RESPONSES = {
    "right": (RIGHT, 1.0, {"correctness": 1, "has_program": 1, "extraction_method": METHODS.index("block")}),
    "partly": (PARTLY, 2 / 3, {"correctness": 0, "has_program": 1, "test_error": 0}),
    "an error": (program("def f(x):\n    return x.y"), 0.0, {"test_error": 1, "compile_error": 0}),
    "no Python": (program("def f(x) return"), 0.0, {"compile_error": 1, "has_program": 1}),
    "too slow": (program("def f(x):\n    while True: pass"), 0.0, {"test_timeout": 1}),
    "ended": (program("import os\ndef f(x):\n    os.abort()"), 0.0, {"test_killed": 1}),
    "of a class of its own": (program("class A: pass\ndef f(x):\n    return A()"), 0.0, {"test_unsupported": 1}),
    "equal to all": (program("class A(int):\n    __eq__ = lambda s, o: True\ndef f(x):\n    return A(7)"), 0.0, {}),
    "an exit": (program("import os\ndef f(x):\n    os._exit(0)"), 0.0, {"test_timeout": 0}),
    "exit at import": (program("raise SystemExit(0)"), 0.0, {"correctness": 0}),
    "in thought alone": (THOUGHT.format("```python\ndef f(x):\n    return x + 1\n```"), 0.0, {"has_program": 0}),
    "wrong after a right thought": (
        THOUGHT.format("```python\ndef f(x):\n    return x + 1\n```") + program("def f(x):\n    return 0"),
        1 / 3,
        {"has_program": 1},
    ),
    "words": (FINAL.format("I cannot."), 0.0, {"has_program": 0, "extraction_method": 0, "truncated_response": 0}),
    "nothing": ("", 0.0, {"has_program": 0, "truncated_response": 0}),
    "cut in thought": ("<|channel|>analysis<|message|>We need", 0.0, {"has_program": 0, "truncated_response": 1}),
    "cut in the block": (
        "<|channel|>final<|message|>```python\ndef f(x):\n    return x + 1",
        1.0,
        {"truncated_response": 1, "extraction_method": METHODS.index("unclosed")},
    ),
}


@pytest.mark.parametrize(("response", "pass_rate", "logged"), RESPONSES.values(), ids=RESPONSES)
def test_each_response_has_its_verdict(load, server, response, pass_rate, logged):
    module = load(server.url, RFT_CODE_SECONDS="1")
    reward, score, numbers = ask(module, response)
    assert reward == score == (pass_rate == 1.0) and numbers["pass_rate"] == pytest.approx(pass_rate)
    assert numbers["unsafe_verdict"] == numbers["label_invalid"] == 0
    assert {name: numbers[name] for name in logged} == logged


@pytest.mark.parametrize(
    ("threshold", "wanted"), [(None, (1, 0)), ("0", (1, 2 / 3)), ("0.66", (1, 2 / 3)), ("0.7", (1, 0)), ("1", (1, 0))]
)
def test_the_pass_rate_counts_from_the_threshold_on(load, server, threshold, wanted):
    module = load(server.url, **({} if threshold is None else {"RFT_CODE_PASS_RATE_THRESHOLD": threshold}))
    assert tuple(ask(module, each)[0] for each in (RIGHT, PARTLY)) == pytest.approx(wanted)


def test_programs_with_input_and_output(load, server):
    module = load(server.url)
    tests = label({"input": "3\n", "output": "6\n"}, kind="stdio", entry_point=None)
    assert [ask(module, program(f"print({n} * int(input()))"), tests)[0] for n in (2, 3)] == [1, 0]


def test_a_humaneval_answer_may_leave_out_what_its_prompt_begins_with(load, server):
    setup = "from typing import List\n\n\ndef doubled(x):\n    return 2 * x"
    test = "def check(candidate):\n    assert candidate([1]) == [2]\n\ncheck(f)\n"
    module, answer = load(server.url), program("def f(x: List[int]) -> List[int]:\n    return [doubled(i) for i in x]")
    assert ask(module, answer, label(test, kind="humaneval", setup=setup))[0] == 1
    assert ask(module, answer, label(test, setup=setup))[2]["pass_rate"] == 0


def test_a_base_model_continues_its_prompt(load, server):
    stub = "def f(x):\n    '''One more.'''\n"
    module = load(server.url)
    assert ask(module, "    return x + 1\n\n\ndef g(): pass\n", prompt=stub)[0] == 1


def test_a_batch_keeps_its_order_and_texts_go_to_the_samples(load, server):
    module = load(server.url)
    responses = [RIGHT, "", PARTLY]
    out = module.reward_func([PROMPT + r for r in responses], [PROMPT] * 3, [ONE_MORE] * 3, extra="ignored")
    assert out["rewards"].tolist() == out["scores"].tolist() == [1.0, 0.0, 0.0]
    assert out["extra_logs"]["test_causes"] == ["passed passed passed", "", "passed passed failed"]
    alone = module.reward_func([PROMPT + PARTLY], [PROMPT], [ONE_MORE])
    assert text_only(alone["extra_logs"]) == {"test_causes": "passed passed failed"}


@pytest.mark.parametrize("bad", ["42", "", "{", None, 7, label(), label("assert f(1) == 2", entry_point="not a name")])
def test_a_label_that_cannot_be_read_is_excluded(load, server, bad):
    reward, score, numbers = ask(load(server.url), RIGHT, bad)
    assert (reward, score, numbers["label_invalid"], numbers["has_program"]) == (0.0, -1.0, 1.0, 1.0)


@pytest.mark.parametrize("name", ["RFT_CODE_PASS_RATE_THRESHOLD", "RFT_CODE_SECONDS"])
@pytest.mark.parametrize("value", ["half", "nan", "-0.1", "1e9"])
def test_an_option_that_is_no_number_stops_the_engine_at_its_start(load, name, value):
    with pytest.raises(ValueError, match=f"found {name}={value}, wanted a number from"):
        load("http://127.0.0.1:9", **{name: value})


def test_a_query_without_its_prompt_is_never_graded(load, server):
    with pytest.raises(ValueError, match="does not begin with its prompt"):
        load(server.url).reward_func(["something else"], ["def f(x): return x + 1  # prompt"], [ONE_MORE])


def executor(module):
    return types.SimpleNamespace(reward_func=module.reward_func, reward_endpoints=[str(REWARD_FILE)])


def place(number):
    return types.SimpleNamespace(extra_args={"prompt_index": number, "sample_index": 0, "reward_timeout": 120})


def test_many_samples_at_once_each_get_their_own_verdict(load, server):
    """As the engine calls it: from one event loop, in threads, each with a sample of its own."""
    module = load(server.url)

    async def one(number):
        tests = label(f"assert f() == {number}", f"assert f() == {number + 1}")
        return await rewards.call(
            executor(module), PROMPT + program(f"def f(): return {number}"), PROMPT, tests, place(number)
        )

    async def all_of_them():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(16))
        return await asyncio.gather(*map(one, range(48)))

    found = asyncio.run(all_of_them())
    assert [each["extra_logs"]["test_causes"] for each in found] == [["passed failed"]] * 48


def test_a_server_that_has_died_ends_the_run_by_name(load, tmp_path):
    with serving(tmp_path, "--workers", "1") as served:
        module = load(served.url)
        assert ask(module, RIGHT)[0] == 1
        served.process.kill()
        served.process.wait()

    async def call():
        where = rewards.position(place(17))
        try:
            return await rewards.call(executor(module), PROMPT + RIGHT, PROMPT, ONE_MORE, place(17))
        except Exception as error:
            raise rewards.failure(error, rewards.name_of(executor(module)), where) from None

    with pytest.raises(rewards.RewardError) as error:
        asyncio.run(call())
    text = str(error.value)
    assert "reward_func_code.py) raised CodeServerError: no answer from the code server" in text
    assert served.url in text and "batch index 17, sample 0" in text and "rft.code_server" in text


class Unkind(BaseHTTPRequestHandler):
    """Answers as its server's `replies` say, the last for ever: a status with a body, or a way to fail."""

    def do_GET(self):
        self.reply("/health")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.reply("verdict")

    def reply(self, asked):
        replies = self.server.replies[asked]
        kind = replies.pop(0) if len(replies) > 1 else replies[0]
        self.server.asked.append(asked)
        if kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        elif kind == "silence":
            self.server.released.wait(60)
        elif kind != "hang up":
            status, body = kind
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())
        self.close_connection = True

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def unkind(verdict):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Unkind)
    server.handle_error = lambda *_: None  # of connections that it has reset itself
    server.replies = {"/health": [(200, '{"isolation": "namespaces"}')], "verdict": list(verdict)}
    server.asked, server.released = [], threading.Event()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


def answer(results, isolation="namespaces"):
    causes = ["passed" if each else "failed" for each in results]
    found = {"results": results, "runtimes": [0.1] * len(results), "causes": causes, "isolation": isolation}
    return 200, json.dumps(found)


GOOD = answer([1, 1, 1])
PASSING = {
    "status 500": [(500, "no")],
    "status 503": [(503, "{}"), (503, "{}")],
    "a reset connection": ["reset", "reset"],
    "a connection that ends": ["hang up"],
    "one after another": [(502, ""), "reset", "hang up"],
}


@pytest.mark.parametrize("first", PASSING.values(), ids=PASSING)
def test_what_may_pass_is_tried_again(load, first):
    with unkind([*first, GOOD]) as (server, url):
        module = load(url)
        module.Client = partial(Client, patience=30.0)
        assert ask(module, RIGHT)[0] == 1.0
    assert server.asked == ["/health", *["verdict"] * (len(first) + 1)]


LASTING = {
    "status 500": ([(500, "no")], "status 500"),
    "a reset connection": (["reset"], "no answer from the code server"),
    "a connection that ends": (["hang up"], "ServerDisconnectedError"),
    "silence": (["silence"], "SocketTimeoutError"),
    "a refusal": ([(422, '{"detail": "too long"}')], "refused the request with status 422"),
    "no JSON": ([(200, "<html>")], "no JSON"),
    "too few results": ([answer([1])], "wanted 3 results"),
    "results that are none": ([(200, '{"results": [1, 1, 2]}')], "wanted 3 results"),
    "no isolation": ([answer([1, 1, 1], "none")], "isolation none"),
}


@pytest.mark.parametrize(("replies", "words"), LASTING.values(), ids=LASTING)
def test_what_lasts_is_an_error_and_no_reward(load, replies, words):
    with unkind(replies) as (_, url):
        module = load(url, RFT_CODE_SECONDS="0.1")
        module.Client = partial(Client, patience=0.5, read_timeout=0.5)
        with pytest.raises(CodeServerError, match=words):
            ask(module, RIGHT)


def test_isolation_none_needs_consent(load, tmp_path):
    with serving(tmp_path, "--isolation", "none", "--allow-unsafe") as served:
        with pytest.raises(CodeServerError, match="export RFT_CODE_ALLOW_UNSAFE=1"):
            ask(load(served.url), "no program in it")
        reward, _, numbers = ask(load(served.url, RFT_CODE_ALLOW_UNSAFE="1"), RIGHT)
    assert (reward, numbers["unsafe_verdict"]) == (1.0, 1.0)
