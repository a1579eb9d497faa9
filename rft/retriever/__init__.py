"""The retriever: passages of a corpus for a query, over HTTP (docs/retriever.md)."""

# What server and client share.
PORT = 8000
MOST_QUERIES = 512  # of one request
MOST_PASSAGES = 100  # for one query
QUERY_CHARACTERS = 4096  # of a query; an encoder reads a few hundred tokens of it
URL_VARIABLE, TOKEN_VARIABLE = "RETRIEVER_URL", "RETRIEVER_TOKEN"


class RetrieverError(RuntimeError):
    """The retriever gave no passages: it is down, refused the request, or answered what is none."""
