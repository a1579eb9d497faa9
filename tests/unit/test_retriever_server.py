"""A real retriever: what it answers, to whom, while it builds, and how it ends."""

import asyncio
import fcntl
import json
import signal
import socket
import subprocess
import time

import pytest
from ports import free_port
from retrievers import HOSTILE, corpus_of, retrieving
from served_processes import BOUND, ROOT, environment, module, until

from rft.retriever import MOST_PASSAGES, MOST_QUERIES, QUERY_CHARACTERS, RetrieverError, limits
from rft.retriever.batches import Batches
from rft.retriever.client import Client
from rft.retriever.engine import Hit
from rft.service.answers import Full, Stopping
from rft.service.listen import bound

TOKEN = "0123456789abcdefgh"
LONG = "x" * (1 << 20)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """300 invented passages, the hostile ones, and one of a megabyte."""
    place = tmp_path_factory.mktemp("retriever")
    with retrieving(place, corpus_of(place, more=[*HOSTILE, LONG])) as served:
        yield served


def ask(server, **asked: object):
    return server.ask("/retrieve", json.dumps(asked))


def ids(answer) -> list[list[str]]:
    return [[entry["document"]["id"] for entry in each] for each in answer.json()["result"]]


def test_both_public_forms(server):
    entry = ask(server, queries=["mark7", "mark8"], topk=1, return_scores=True).json()["result"][0][0]
    assert entry["document"]["contents"].startswith('"title 7"\nmark7 ') and entry["document"]["title"] == "title 7"
    assert entry["document"]["text"].startswith("mark7 ") and entry["score"] > 0
    assert ids(ask(server, query="mark9", topk=1)) == [["p9"]]
    assert [len(each) for each in ids(ask(server, queries=["mark1"], topk=None))] == [limits.TOPK]
    assert "score" not in ask(server, query="mark9", topk=1, return_scores=False).json()["result"][0][0]


def test_the_clients_passages(server):
    async def run():
        async with Client(server.url) as client:
            return await client.retrieve(["mark7", "oddity2", "mark8 " + "y" * 9000], 2), await client.health()

    found, health = asyncio.run(run())
    assert [each[0].id for each in found] == ["p7", "h2", "p8"] and all(len(each) == 2 for each in found)
    assert found[1][0].text == f"oddity2 {HOSTILE[2]}" and found[1][0].title == "odd"
    expected = {"status", "corpus", "corpus_name", "passages", "index", "encoder", "uptime"}
    assert set(health) == expected and health["status"] == "ok" and health["passages"] == 305


@pytest.mark.parametrize("number, text", list(enumerate([*HOSTILE, LONG])), ids=lambda each: str(each)[:12])
def test_text_travels_as_it_is(server, number, text):
    answer = ask(server, query=f"oddity{number}", topk=1)
    assert answer.json()["result"][0][0]["document"]["text"] == f"oddity{number} {text}"
    assert answer.content.isascii()


UNSOUND = [
    ("no JSON", "{", 422),
    ("no object", "[]", 422),
    ("nothing", {}, 422),
    ("both forms", {"query": "a", "queries": ["a"]}, 422),
    ("no queries", {"queries": []}, 422),
    ("an empty query", {"queries": ["a", ""]}, 422),
    ("a blank query", {"query": " \n\t"}, 422),
    ("a number", {"queries": [5]}, 422),
    ("a nested list", {"queries": [["a"]]}, 422),
    ("one text as a list", {"queries": "abc"}, 422),
    ("a list as one text", {"query": ["abc"]}, 422),
    ("a long query", {"query": "x" * (QUERY_CHARACTERS + 1)}, 422),
    ("too many", {"queries": ["x"] * (MOST_QUERIES + 1)}, 422),
    ("topk 0", {"query": "a", "topk": 0}, 422),
    ("topk negative", {"query": "a", "topk": -1}, 422),
    ("topk too large", {"query": "a", "topk": MOST_PASSAGES + 1}, 422),
    ("topk as text", {"query": "a", "topk": "3"}, 422),
    ("topk true", {"query": "a", "topk": True}, 422),
    ("topk 1.5", {"query": "a", "topk": 1.5}, 422),
    ("another field", {"query": "a", "top_k": 3}, 422),
    ("invalid UTF-8", b'{"query": "\xff"}', 400),
    ("deep JSON", "[" * 100_000, 400),
    ("a large body", " " * (limits.BODY_BYTES + 1), 413),
]


@pytest.mark.parametrize("asked, status", [each[1:] for each in UNSOUND], ids=[each[0] for each in UNSOUND])
def test_unsound_requests_are_refused(server, asked, status):
    answer = server.ask("/retrieve", asked if isinstance(asked, str | bytes) else json.dumps(asked))
    assert answer.status_code == status and len(answer.content) < 10_000
    assert status == 413 or answer.json()["cause"]  # of a body too large, the framework says so in plain text
    assert ids(ask(server, query="mark5", topk=1)) == [["p5"]]


@pytest.mark.parametrize("query", ["\ud800", "\0", "\u200b", "?!", "x" * QUERY_CHARACTERS, "<|end|>", "a\n\nb"])
def test_any_other_query_is_answered(server, query):
    assert [len(each) for each in ids(ask(server, query=query, topk=2))] == [2]


def test_the_most_that_may_be_asked(server):
    answer = ask(server, queries=[f"mark{n % 300}" for n in range(MOST_QUERIES)], topk=MOST_PASSAGES)
    assert [each[0] for each in ids(answer)] == [f"p{n % 300}" for n in range(MOST_QUERIES)]


async def asked_by_many(url: str, clients: int, each: int) -> list:
    """What every client gets, one request after another, of its own queries."""

    async def one(client: int) -> list:
        async with Client(url) as session:
            found = []
            for turn in range(each):
                numbers = [(client * 31 + turn * 7 + n) % 300 for n in range(1 + client % 3)]
                found.append((numbers, await session.retrieve([f"mark{n}" for n in numbers], 1 + client % 4)))
            return found

    return await asyncio.gather(*map(one, range(clients)))


@pytest.mark.parametrize("index", ["bm25", "dense"])
def test_64_clients_at_once_are_not_mixed_up(server, tmp_path, index):
    def check(server):
        for client, answers in enumerate(asyncio.run(asked_by_many(server.url, 64, 4))):
            for numbers, found in answers:
                assert [len(passages) for passages in found] == [1 + client % 4] * len(numbers)
                alone = [ask(server, query=f"mark{n}", topk=1 + client % 4).json()["result"][0] for n in numbers]
                assert [[p.id for p in passages] for passages in found] == [
                    [entry["document"]["id"] for entry in each] for each in alone
                ]
                assert [[p.score for p in passages] for passages in found] == [
                    [entry["score"] for entry in each] for each in alone
                ]
                if index == "bm25":
                    assert [passages[0].id for passages in found] == [f"p{n}" for n in numbers]

    if index == "bm25":
        check(server)
    else:
        with retrieving(tmp_path, corpus_of(tmp_path), "--index", "dense") as dense:
            check(dense)


def test_metrics_count_what_was_asked(server):
    before = server.numbers()
    ask(server, queries=["mark1", "mark2"])
    ask(server, query="")
    after = server.numbers()

    def grown(*name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("retriever_queries_total") == 2 and grown("retriever_batch_queries_sum") == 2
    assert grown("retriever_batch_queries_count") == 1
    assert grown("retriever_requests_total", "/retrieve", "422") == 1
    assert grown("retriever_request_seconds_count", "/retrieve") == 1


@pytest.fixture
def held(tmp_path):
    """A retriever that waits for the lock of its index, and what releases it."""
    corpus, folder = corpus_of(tmp_path), tmp_path / "index"
    folder.mkdir()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with retrieving(tmp_path, corpus, "--index-dir", str(folder), said="listens at") as served:
            yield served, lock


def test_a_server_that_builds_says_so_and_then_answers(held):
    server, lock = held
    until(lambda: "waiting for another" in server.ask("/health").json()["progress"]["what"])
    health = server.ask("/health").json()
    assert health["status"] == "building" and set(health["progress"]) == {"what", "done", "of"}
    assert "corpus" not in health
    refused = ask(server, query="mark1")
    assert refused.status_code == 503 and refused.json()["cause"] == "building" and refused.headers["Retry-After"]

    async def waits() -> list:
        async with Client(server.url, patience=BOUND) as client:
            asking = asyncio.create_task(client.retrieve(["mark1"], 1))
            await asyncio.sleep(0.1)
            fcntl.flock(lock, fcntl.LOCK_UN)
            return await asking

    assert asyncio.run(waits())[0][0].id == "p1"
    assert server.ask("/health").json()["status"] == "ok"


def test_no_passages_from_a_server_that_does_not_come_up(held):
    async def run():
        async with Client(held[0].url, patience=0.5) as client:
            await client.retrieve(["mark1"], 1)

    with pytest.raises(RetrieverError, match="building"):
        asyncio.run(run())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_that_builds(held, number):
    server = held[0]
    server.process.send_signal(number)
    assert server.process.wait(BOUND) == 0 and "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server(tmp_path, number):
    with retrieving(tmp_path, corpus_of(tmp_path)) as server:
        with server.connection():  # idle
            server.process.send_signal(number)
            assert server.process.wait(BOUND) == 0
        assert "Traceback" not in server.log.read_text() and "stopped" in server.log.read_text()


def test_small_answers_do_not_wait_for_more():
    """Nagle's algorithm and the client's delayed acknowledgement make 40 ms of a millisecond."""

    async def run() -> list[int]:
        delays = []

        async def accepted(_, writer: asyncio.StreamWriter) -> None:
            place = writer.get_extra_info("socket")
            delays.append(place.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = bound("127.0.0.1", 0, "ANY", 1)
        async with await asyncio.start_server(accepted, sock=listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            await reader.read()
            writer.close()
        return delays

    assert asyncio.run(run()) == [1]


def test_a_token_is_asked_for(tmp_path):
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(TOKEN)
    arguments = ("--host", "0.0.0.0", "--token-file", str(file))
    with retrieving(tmp_path, corpus_of(tmp_path), *arguments) as server:
        assert server.ask("/health").status_code == ask(server, query="mark1").status_code == 401
        answer = server.ask("/retrieve", '{"query": "mark1"}', Authorization=f"Bearer {TOKEN}")
        assert answer.status_code == 200 and "RETRIEVER_TOKEN" in server.ask("/health").text

        async def run():
            async with Client(server.url, TOKEN) as client:
                return await client.retrieve(["mark1"], 1)

        assert asyncio.run(run())[0][0].id == "p1" and TOKEN not in server.log.read_text()


def test_a_client_notices_that_a_server_has_come_back_with_other_passages(tmp_path):
    places = [tmp_path / name for name in ("first", "again", "other")]
    for place in places:
        place.mkdir()
    first = corpus_of(places[0])
    port = free_port()

    async def ask(client: Client) -> list:
        return await client.retrieve(["mark1"], 1)

    async def run() -> None:
        async with Client(f"http://127.0.0.1:{port}") as client:
            for place, corpus in zip(places, (first, first, corpus_of(places[2], 301)), strict=True):
                with retrieving(place, corpus, "--port", str(port)):
                    if place is not places[2]:
                        assert [each.id for each in (await ask(client))[0]] == ["p1"]
                        continue
                    with pytest.raises(RetrieverError, match="the retriever has changed: found an answer from"):
                        await ask(client)

    asyncio.run(run())


REFUSED = [
    ("another host", ["--index", "bm25", "--host", "0.0.0.0"], 2, "without a token"),
    ("no index", [], 2, "--index"),
    ("another index", ["--index", "sparse"], 2, "invalid choice"),
    ("an encoder of words", ["--index", "bm25", "--encoder", "wordllama"], 2, "--encoder with --index bm25"),
    ("a prefix for nothing", ["--index", "dense", "--query-prefix", "query: "], 2, "--encoder DIR"),
    ("no encoder there", ["--index", "dense", "--encoder", "nowhere"], 1, "found no model in nowhere"),
    ("no corpus", ["--index", "bm25", "--corpus", "nowhere.jsonl"], 1, "found no file nowhere.jsonl"),
]


@pytest.mark.parametrize("arguments, status, said", [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED])
def test_refused_at_the_start(tmp_path, arguments, status, said):
    command = module("rft.retriever", "--corpus", str(corpus_of(tmp_path, 5)), "--port", "0", *arguments)
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=BOUND)
    assert done.returncode == status and said in done.stderr and "Traceback" not in done.stderr
    assert not (ROOT / "nowhere.bm25").exists()


def searched(queries: list[str], k: int) -> list[list[Hit]]:
    """Slower than a request is asked; what it is of `bad` it cannot search."""
    time.sleep(0.05)
    if "bad" in queries:
        raise RuntimeError("bad")
    return [[Hit(1.0, {"id": f"{query}{n}"}) for n in range(k)] for query in queries]


def test_what_waits_together_is_searched_together():
    async def run():
        sizes = []
        batches = Batches(searched, 4, 7, sizes.append)
        tasks = [asyncio.create_task(batches.ask([str(n)] * (1 + n % 2), 1 + n % 3)) for n in range(5)]
        await asyncio.sleep(0.01)
        assert sizes == [4] and batches.waiting == 3
        with pytest.raises(Full):
            await batches.ask(["x"] * 5, 1)
        tasks[3].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert sizes == [4, 1]
        assert isinstance(found.pop(3), asyncio.CancelledError)
        for n, each in zip((0, 1, 2, 4), found, strict=True):
            wanted = [[f"{n}{place}" for place in range(1 + n % 3)]] * (1 + n % 2)
            assert [[hit.document["id"] for hit in hits] for hits in each] == wanted
        batches.stop()
        with pytest.raises(Stopping):
            await batches.ask(["x"], 1)

    asyncio.run(run())


def test_a_query_that_cannot_be_searched_fails_alone():
    async def run():
        batches = Batches(searched, 16, 16, lambda size: None)
        found = await asyncio.gather(
            *(batches.ask([each], 1) for each in ("a", "b", "bad", "c")), return_exceptions=True
        )
        assert [str(each) if isinstance(each, Exception) else each[0][0].document["id"] for each in found] == [
            "a0", "b0", "bad", "c0",
        ]  # fmt: skip
        batches.stop()

    asyncio.run(run())


def test_whoever_waits_is_turned_away_at_the_end():
    async def run():
        batches = Batches(searched, 1, 16, lambda size: None)
        tasks = [asyncio.create_task(batches.ask([each], 1)) for each in "ab"]
        await asyncio.sleep(0.02)
        batches.stop()
        first, second = await asyncio.gather(*tasks, return_exceptions=True)
        assert first[0][0].document["id"] == "a0" and isinstance(second, Stopping)

    asyncio.run(run())
