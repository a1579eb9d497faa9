"""Slow clients of the code server: the headers, the body, an idle connection each have their time."""

import asyncio

import pytest
from code_servers import BOUND, body, raw

from rft.code.sandbox import Pool
from rft.code_server.app import make_app
from rft.code_server.queue import Queue
from rft.code_server.serve import Server
from rft.service import guard, process
from rft.service.process import Impatient, configured


async def served(talk) -> bytes:
    """What a server here answers on one connection to `talk`, until it closes."""
    async with Pool(slots=1) as pool:
        queue = Queue(1, 1)
        config = configured(make_app(pool, queue), 16, BOUND)
        assert config.http is Impatient
        server = Server(config, queue)
        config.host, config.port = "127.0.0.1", 0
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            place = server.servers[0].sockets[0].getsockname()
            reader, writer = await asyncio.open_connection(*place)
            await talk(writer)
            async with asyncio.timeout(BOUND):
                try:
                    answer = await reader.read()
                except ConnectionError:  # what came behind the close was not read
                    answer = b""
            writer.close()
            return answer
        finally:
            server.should_exit = True
            await serving


SENT = raw(body())


async def nothing(writer):
    pass


async def half_the_headers(writer):
    writer.write(SENT[:20])


async def headers_in_drops(writer):
    for place in range(40):
        if writer.transport.is_closing():
            break
        writer.write(SENT[place : place + 1])
        await asyncio.sleep(0.05)


async def half_the_body(writer):
    writer.write(SENT[:-5])


async def a_whole_request(writer):
    writer.write(SENT)


async def a_request_and_half(writer):
    writer.write(SENT + SENT[:20])


@pytest.mark.parametrize(
    "talk, begins",
    [
        (nothing, b""),
        (half_the_headers, b""),
        (headers_in_drops, b""),
        (half_the_body, b"HTTP/1.1 408 "),
        (a_whole_request, b"HTTP/1.1 200 "),
        (a_request_and_half, b"HTTP/1.1 200 "),
    ],
)
def test_a_slow_client_is_left(monkeypatch, talk, begins):
    monkeypatch.setattr(process, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(process, "KEEP_ALIVE_SECONDS", 1)
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.5)
    answer = asyncio.run(served(talk))
    assert answer.startswith(begins) and (begins or not answer)
    assert answer.count(b"HTTP/1.1") == bool(begins)
