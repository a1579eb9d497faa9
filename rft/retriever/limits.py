"""What a request may ask for."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from rft.retriever import MOST_PASSAGES, MOST_QUERIES, QUERY_CHARACTERS

BODY_BYTES = 16 << 20  # more than all queries with every character escaped
QUEUE = 4096  # queries that wait
BATCH = 256  # queries that are encoded and searched together
CONNECTIONS = 2048
STOP_SECONDS = 5  # for what is being searched when the server is told to stop
TOPK = 3


def _query(value: Any) -> str:
    """Any text, lone surrogates too, which pydantic's own str refuses."""
    if not isinstance(value, str):
        raise ValueError("must be text")
    if not value.strip():
        raise ValueError("must not be blank")
    if len(value) > QUERY_CHARACTERS:
        raise ValueError(f"must have {QUERY_CHARACTERS} characters at most")
    return value


Query = Annotated[Any, AfterValidator(_query)]


class Search(BaseModel):
    """`POST /retrieve`: `queries`, or one `query`."""

    model_config = ConfigDict(extra="forbid")

    queries: Annotated[list[Query], Field(strict=True, min_length=1, max_length=MOST_QUERIES)] | None = None
    query: Query | None = None
    topk: Annotated[int, Field(strict=True, ge=1, le=MOST_PASSAGES)] | None = None
    return_scores: Annotated[bool, Field(strict=True)] | None = None

    def model_post_init(self, _: Any) -> None:
        """Raises ValueError unless there is one of both forms."""
        if (self.queries is None) == (self.query is None):
            raise ValueError("wanted queries, a list, or query, one")

    @property
    def asked(self) -> list[str]:
        """The queries."""
        return self.queries if self.query is None else [self.query]
