"""The code server's client: what it tries again, what it raises at once, and that a failure is never a verdict."""

import asyncio
import signal
import time
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from code_servers import ADD, serving, until

from rft.code_server.client import Answer, Client, CodeServerError

SOUND = {"results": [1], "runtimes": [0.1], "causes": ["passed"], "isolation": "namespaces"}
TESTS = ["assert add(1, 2) == 3"]


def sound(request: web.Request) -> web.Response:
    return web.json_response(SOUND)


def cut(request: web.Request) -> web.Response:
    request.transport.close()
    return web.Response()


def reset(request: web.Request) -> web.Response:
    request.transport.abort()
    return web.Response()


async def half(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Length": "100", "Content-Type": "application/json"})
    await answer.prepare(request)
    await answer.write(b"{")
    request.transport.abort()
    return answer


async def hang(request: web.Request) -> web.Response:
    await asyncio.sleep(1000)
    return web.Response()


def status(number: int, **headers: str):
    def answer(request: web.Request) -> web.Response:
        return web.Response(status=number, text="x" * 10_000, headers=headers)

    return answer


def text(found: object):
    return lambda request: web.json_response(found)


@asynccontextmanager
async def answering(*answers):
    """A server that gives these answers one after another, then the last one for ever; the value: URL and requests."""
    seen = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append((request.headers.copy(), await request.json()))
        found = answers[min(len(seen), len(answers)) - 1](request)
        return await found if asyncio.iscoroutine(found) else found

    app = web.Application()
    app.router.add_post("/test_program", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}", seen
    finally:
        await runner.cleanup()


def asked(*answers, program: str = ADD, **options) -> tuple:
    """(answer or error, requests seen) of one question to such a server."""

    async def ask():
        async with answering(*answers) as (url, seen), Client(url, **options) as client:
            try:
                return await client.test_program(program, TESTS, max_execution_time=0.01), seen
            except CodeServerError as error:
                return error, seen

    return asyncio.run(ask())


PASSING = {
    "500": status(500),
    "503": status(503, **{"Retry-After": "1"}),
    "503 until a date": status(503, **{"Retry-After": "Wed, 21 Oct 2065 07:28:00 GMT"}),
    "closed": cut,
    "reset": reset,
    "half an answer": half,
    "no answer in time": hang,
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
def test_what_may_pass_is_tried_again(fault):
    answer, seen = asked(fault, sound, read_timeout=0.5)
    assert answer == Answer(**SOUND) and len(seen) == 2


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
def test_what_does_not_pass_is_raised(fault):
    error, seen = asked(fault, read_timeout=0.2, patience=1.5)
    assert isinstance(error, CodeServerError) and len(seen) > 1
    assert f"{len(seen)} tries" in str(error) and "-m rft.code_server" in str(error) and len(str(error)) < 2000


FINAL = {
    "422": status(422),
    "401": status(401),
    "404": status(404),
    "another place": status(307, Location="http://127.0.0.1:1/"),
    "no JSON": lambda request: web.Response(text="<html>"),
    "broken JSON": lambda request: web.Response(text="{", content_type="application/json"),
    "a list": text([1]),
    "no results": text({"results": [1]}),
    "too many results": text(SOUND | {"results": [1, 1]}),
    "too few runtimes": text(SOUND | {"runtimes": []}),
    "a result that is none": text(SOUND | {"results": [2]}),
    "a result of text": text(SOUND | {"results": ["1"]}),
    "a result of lists": text(SOUND | {"results": [[]]}),
}


@pytest.mark.parametrize("fault", FINAL.values(), ids=FINAL)
def test_what_cannot_pass_is_raised_at_once(fault):
    error, seen = asked(fault)
    assert isinstance(error, CodeServerError) and len(seen) == 1 and len(str(error)) < 2000


def test_nobody_there():
    async def ask():
        async with Client("http://127.0.0.1:9", patience=1) as client:
            await client.health()

    with pytest.raises(CodeServerError, match=r"http://127.0.0.1:9/health: \d tries.*-m rft.code_server"):
        asyncio.run(ask())


@pytest.mark.parametrize("url", ["127.0.0.1:1234", "ftp://127.0.0.1", "http://", "code server"])
def test_an_address_that_is_none(url):
    with pytest.raises(ValueError, match="CODE_SERVER_URL"):
        Client(url)


def test_token_and_address_of_the_environment(monkeypatch):
    async def ask():
        async with answering(sound) as (url, seen):
            monkeypatch.setenv("CODE_SERVER_URL", url + "/")
            async with Client() as client:
                await client.test_program(ADD, TESTS)
        return seen

    monkeypatch.setenv("CODE_SERVER_TOKEN", "a token")
    ((headers, sent),) = asyncio.run(ask())
    assert headers["Authorization"] == "Bearer a token" and sent["program"] == ADD


def test_proxies_are_ignored(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert asked(sound)[0] == Answer(**SOUND)


def test_a_long_program_is_cut_where_it_is_too_long_still():
    _, ((_, sent),) = asked(sound, program="#" * 10_000_000)
    assert len(sent["program"]) == (1 << 18) + 1


def test_one_client_in_several_loops(tmp_path):
    """Reward functions are called in threads, each with a loop of its own."""
    with serving(tmp_path) as server:
        client = Client(server.url)

        async def ask():
            try:
                return await client.test_program(ADD, TESTS)
            finally:
                await client.close()

        assert [asyncio.run(ask()).results for _ in range(2)] == [[1], [1]]


def test_a_server_killed_in_between_is_named(tmp_path):
    """No verdict is made up, and the error comes within the patience."""
    with serving(tmp_path, "--workers", "1") as server:

        async def ask():
            async with Client(server.url, patience=2) as client:
                task = asyncio.create_task(client.test_program("import time\ntime.sleep(1000)", TESTS))
                await asyncio.to_thread(until, lambda: server.ask("/health").json()["running"])
                server.process.send_signal(signal.SIGKILL)
                killed = time.monotonic()
                with pytest.raises(CodeServerError, match=server.url):
                    await task
                print(f"{time.monotonic() - killed:.1f} s from the server's death to the error")

        asyncio.run(ask())
