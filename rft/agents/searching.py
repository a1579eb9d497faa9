"""A search of one conversation, the same in training and in an evaluation."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rft.retriever.client import Client, Passage


async def search(client: "Client", query: str, topk: int) -> "list[Passage]":
    """The nearest passages for one query of the policy; the client cuts it to what a retriever takes.

    Raises:
        RetrieverError: the retriever gives none.
    """
    (found,) = await client.retrieve([query], topk)
    return found
