"""What the retriever's client makes of an answer that is none: an error by name, never passages, never none of them."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft.retriever import RetrieverError
from rft.retriever.client import Client, Passage

GOOD = {"document": {"id": "7", "title": "T", "text": "words"}, "score": 1.5}
HEAD = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n"


@asynccontextmanager
async def answering(body: bytes, length: int | None = None, head: str = HEAD):
    """A server that gives every request these bytes; the address, and a list with each request's body."""
    asked = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        size = next(
            (int(line.split(b":")[1]) for line in request.split(b"\r\n") if b"content-length" in line.lower()), 0
        )
        asked.append(await reader.readexactly(size))
        writer.write(head.format(len(body) if length is None else length).encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


def retrieved(body: bytes, queries: list[str], topk: int = 2, patience: float = 0.0, **how) -> tuple[object, int]:
    """What the client gives or raises for this answer, and how often it asked."""

    async def ask() -> tuple[object, int]:
        async with answering(body, **how) as (url, asked), Client(url, patience=patience, read_timeout=2.0) as client:
            try:
                return await client.retrieve(queries, topk), len(asked)
            except RetrieverError as error:
                return error, len(asked)

    return asyncio.run(ask())


def result(*lists: list) -> bytes:
    return json.dumps({"result": lists}).encode()


def with_document(**fields: object) -> bytes:
    return result([{"document": {"id": "7", "title": "T", "text": "words"} | fields, "score": 1.0}])


def test_a_sound_answer_is_passages():
    assert retrieved(result([GOOD]), ["q"]) == ([[Passage("7", "T", "words", 1.5)]], 1)
    found, _ = retrieved(result([{"document": {"id": 7, "contents": '"T"\nwords'}}], [GOOD, GOOD]), ["q", "r"])
    assert found == [[Passage("7", "T", "words", None)], [Passage("7", "T", "words", 1.5)] * 2]


GARBAGE = {
    "nothing": b"",
    "half of it": result([GOOD])[:-9],
    "no UTF-8": b'{"result": [[{"document": {"id": "\xff", "text": "x"}}]]}',
    "a page": b"<html>Bad gateway</html>",
    "a number": b"7",
    "a list": b"[]",
    "null": b"null",
    "another object": b'{"passages": []}',
    "no lists": b'{"result": null}',
    "a text for lists": b'{"result": "x"}',
    "no results": result(),
    "an empty list": result([]),
    "fewer than asked": result([GOOD]),
    "more than asked": result([GOOD], [GOOD], [GOOD]),
    "one empty of two": result([GOOD], []),
    "more passages than asked": result([GOOD] * 3, [GOOD]),
    "entries that are none": result(["x"], ["y"]),
    "no document": result([{"score": 1.0}], [GOOD]),
    "a document that is a list": result([{"document": ["x"]}], [GOOD]),
    "no text": result([{"document": {"id": "7"}}], [GOOD]),
    "too deep": b"[" * 100_000,
}


@pytest.mark.parametrize("body", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_an_error_by_name(body):
    found, _ = retrieved(body, ["q", "r"])
    assert isinstance(found, RetrieverError), found
    assert len(str(found)) < 2000


FIELDS = {
    "a text that is an object": {"text": {"x": 1}},
    "a text that is a number": {"text": 7},
    "contents that are a list": {"text": None, "contents": ["x"]},
    "a title that is a list": {"title": ["x"]},
    "nothing to read": {"text": " ", "title": None},
}


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_a_document_of_other_types_is_no_passage(fields):
    found, _ = retrieved(with_document(**fields), ["q"])
    assert isinstance(found, RetrieverError), found


@pytest.mark.parametrize("score", ["high", [], {}, 10**400])
def test_a_score_that_is_no_number_is_no_passage(score):
    found, _ = retrieved(result([GOOD | {"score": score}]), ["q"])
    assert isinstance(found, RetrieverError), found


def test_an_answer_that_is_cut_is_asked_for_again_within_the_patience():
    whole = result([GOOD])
    found, asked = retrieved(whole[:-5], ["q"], patience=1.0, length=len(whole))
    assert isinstance(found, RetrieverError) and asked > 1 and "Payload" in str(found)


def test_a_server_that_hangs_is_an_error_after_the_time_given():
    found, asked = retrieved(b"", ["q"], length=9, head="HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n")
    assert isinstance(found, RetrieverError) and asked == 1


def test_a_redirect_is_not_followed():
    found, asked = retrieved(
        b"", ["q"], head="HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: {}\r\n\r\n"
    )
    assert isinstance(found, RetrieverError) and asked == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.just(GOOD),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["result", "document", "text", "title", "id", "contents", "score"]), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(JSON | st.fixed_dictionaries({"result": JSON}) | st.fixed_dictionaries({"result": st.lists(st.lists(JSON))}))
def test_any_json_is_passages_for_each_query_or_an_error(answer):
    found, _ = retrieved(json.dumps(answer).encode(), ["q"])
    if not isinstance(found, RetrieverError):
        ((*passages,),) = found
        assert 1 <= len(passages) <= 2
        for each in passages:
            assert (
                isinstance(each.text, str)
                and (each.text + each.title).strip()
                and isinstance(each.title, str)
                and isinstance(each.id, str)
            )
            assert each.score is None or isinstance(each.score, float)


def test_what_the_policy_writes_arrives_as_it_is():
    """A query may hold anything that a decoder gives."""
    queries = ["", " ", "\0\x1b[2J", "a" * 100_000, "‮ ☃ 😀", '"}]', "\ud800"]

    async def ask() -> list[bytes]:
        async with answering(result(*[[GOOD]] * len(queries))) as (url, asked), Client(url, patience=0.0) as client:
            await client.retrieve(queries, 1)
            return asked

    (sent,) = asyncio.run(ask())
    arrived = json.loads(sent)["queries"]
    assert len(arrived) == len(queries) and all(q.startswith(a) for a, q in zip(arrived, queries, strict=True))


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:y", "http://x:1:", "http://x:0", "http://[::1"]
)
def test_an_address_that_is_none_is_refused_at_once(url):
    with pytest.raises(ValueError, match=r"as the retriever's address; wanted http.* set RETRIEVER_URL"):
        Client(url)
