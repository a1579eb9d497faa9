"""Asks the retriever, and tells passages from a server that could not give any (docs/retriever.md)."""

import os
from dataclasses import dataclass

from rft.json_client import PATIENCE, SHOWN, JsonClient, Service
from rft.retriever import PORT, QUERY_CHARACTERS, TOKEN_VARIABLE, URL_VARIABLE, RetrieverError

URL = f"http://127.0.0.1:{PORT}"
READ_TIMEOUT = 120.0  # seconds for an answer: a flat index of 21 million passages takes 10 s a query on a busy CPU
REPAIR = "start it with: .venv/bin/python -m rft.retriever --corpus FILE.jsonl --index bm25"
SERVICE = Service("retriever", URL_VARIABLE, URL, REPAIR, RetrieverError)


@dataclass(frozen=True)
class Passage:
    """What was found."""

    id: str
    title: str  # empty where the corpus has none
    text: str
    score: float | None  # higher is nearer; of another scale for each kind of index


def address() -> str:
    """Where the retriever is: RETRIEVER_URL, else http://127.0.0.1:8000."""
    return os.environ.get(URL_VARIABLE) or URL


class Client(JsonClient):
    """A connection to one retriever, see `rft.json_client.JsonClient`.

    Args:
        url: `http://HOST:PORT`; without it `address()`.
        token: what another host than the loopback asks for; without it RETRIEVER_TOKEN.
        patience: seconds of trying again after the first failure of a request.
        read_timeout: seconds to wait for one answer.

    Raises:
        ValueError: if the URL is none of HTTP.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        patience: float = PATIENCE,
        read_timeout: float = READ_TIMEOUT,
    ):
        token = token or os.environ.get(TOKEN_VARIABLE)
        super().__init__(SERVICE, url or address(), token, patience=patience, read_timeout=read_timeout)
        self._first: object = None  # what the first answer was from

    async def retrieve(self, queries: list[str], topk: int) -> list[list[Passage]]:
        """The nearest passages for each query, the best first; a corpus of fewer has fewer.

        Of a query the first 4,096 characters are sent, of which an encoder reads less. None may be blank.

        Raises:
            RetrieverError: no answer, or one that is not as many lists of passages as queries, or is from another
                corpus, index or encoder than the first that this client got. Never empty for that.
        """
        asked = {"queries": [query[:QUERY_CHARACTERS] for query in queries], "topk": topk, "return_scores": True}
        found = await self.ask("POST", "/retrieve", asked)
        try:
            lists = [[_passage(entry) for entry in each] for each in found["result"]]
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise self._none(found, len(queries)) from error
        if len(lists) != len(queries) or not all(0 < len(each) <= topk for each in lists):
            raise self._none(found, len(queries))
        source = found.get("from")  # other servers do not say it
        self._first = self._first or source
        if source != self._first:
            raise RetrieverError(
                f"{self.url}: the retriever has changed: found an answer from {source}, wanted one from {self._first}, "
                "as before; start it again as it was"
            )
        return lists

    def _none(self, found: object, wanted: int) -> RetrieverError:
        return RetrieverError(
            f"{self.url}/retrieve: found {str(found)[:SHOWN]!r}; wanted passages for {wanted} queries, in their order; "
            f"{REPAIR}"
        )


def _passage(entry: dict) -> Passage:
    """One entry of an answer: Search-R1's server gives `contents`, of which the first line is the title in quotes."""
    document = entry["document"]
    title, text = document.get("title"), document.get("text")
    if text is None:
        title, _, text = document["contents"].partition("\n")
        title, text = (title.strip().strip('"'), text) if text else ("", title)
    if not isinstance(text, str) or not isinstance(title, str | None) or not (text.strip() or (title or "").strip()):
        raise TypeError
    score = entry.get("score")
    return Passage(str(document.get("id", "")), title or "", text, None if score is None else float(score))
