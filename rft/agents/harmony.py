"""Harmony's own tool calls: the model calls `functions.search`, and a message of that function brings what was found.

As openai-harmony renders it: the call ends with `<|call|>`, the function answers in the commentary channel to the
assistant. The answer is the final message. The function is declared in the developer message, by `INSTRUCTION`; the
line that Harmony writes into the system message where there are functions, stands there too, since OpenRLHF gives a
chat template messages alone.
"""

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from rft.agents.actions import Action, Observation
from rft.agents.observations import framed, visible

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rft.retriever.client import Passage

TOOLS = """\
# Tools

## functions

namespace functions {

// Find passages of the corpus.
type search = (_: {
// What to look for.
query: string,
}) => any;

} // namespace functions"""
INSTRUCTION = f"""\
Answer the question. Think first. Whenever you lack knowledge, call functions.search; search as often as you need. \
When you know the answer, write it as the final message, as short as it can be, for example: Beijing
Calls to these tools must go to the commentary channel: 'functions'.

{TOOLS}"""
LAST_TURN = "This was the last search. Write the answer as the final message now."
CALLED, RETURNED = "<|call|>", "<|return|>"
REPLY = "<|start|>functions.search to=assistant<|channel|>commentary<|message|>"
ASSISTANT = "<|start|>assistant"
RECIPIENT = re.compile(r"to=([^\s<]+)")
ROLE = re.compile(r"<\|start\|>([a-z.]*)")
CHANNEL = re.compile(r"<\|channel\|>([a-z]+)")
_ENDS = ("<|end|>", CALLED, RETURNED, "<|endoftext|>")
_SPECIAL = re.compile(r"<\|[a-z_]+\|>")
_END = re.compile("|".join(map(re.escape, _ENDS)))


class Message(NamedTuple):
    """One message of a turn."""

    header: str
    content: str
    end: str  # the special token that ends it; empty where the limit did


def stops(last_turn: bool) -> dict:
    """Fields of SamplingParams that end a turn. As texts, which an engine sees only if it keeps special tokens: ids
    differ by tokenizer, and an engine's own follow from a file of the checkpoint."""
    return {"stop": [CALLED, RETURNED], "include_stop_str_in_output": True, "skip_special_tokens": False}


def parse(text: str) -> Action:
    """What a turn asks for, by its last message, which must be the assistant's: no other role's is invented here.

    Args:
        text: the sampled tokens, decoded, special tokens kept; the prompt ends with the header's beginning.
    """
    last = messages(text)[-1]
    recipient, channel = RECIPIENT.search(last.header), CHANNEL.search(last.header)
    if set(ROLE.findall(last.header)) - {"assistant"}:
        return Action("invalid", "its last message is not the assistant's")
    if _SPECIAL.search(last.content):
        return Action("invalid", "its last message holds special tokens")
    if last.end == CALLED:
        if recipient is None or recipient[1] != "functions.search":
            return Action("invalid", "it calls no function that there is; there is functions.search")
        return _query(last.content)
    if recipient is None and channel and channel[1] == "final" and last.end == RETURNED:
        return Action("answer", visible(last.content).strip())
    if last.end == RETURNED:
        return Action("invalid", "it ends without a final message")
    return Action("invalid", "it has neither a call of functions.search nor a whole final message")


def messages(text: str) -> list[Message]:
    """The messages of a turn, at least one; what stands before the first `<|message|>` is its header."""
    found, rest = [], text
    while True:
        header, _, body = rest.partition("<|message|>")
        end = _END.search(body)
        if end is None:
            return [*found, Message(header, body, "")]
        found.append(Message(header, body[: end.start()], end[0]))
        rest = body[end.end() :]
        if not rest.strip():
            return found


def invalid(why: str) -> str:
    """The sentence back after a turn that neither searches nor answers."""
    return f"That turn is not valid: {why}. Call functions.search, or write the answer as the final message."


def observation(
    passages: "list[Passage] | None",
    *,
    note: str | None,
    after: str,
    limit: int,
    tokenizer: "PreTrainedTokenizerBase",
) -> Observation:
    """What is written after a turn: the function's message, or one of the user's; arguments as `rft.agents.tags`."""
    closing = f"<|end|>{ASSISTANT}"
    if passages is not None:
        return framed(tokenizer, REPLY, passages, f"\n\n{note}{closing}" if note else closing, limit)
    return framed(tokenizer, f"{opening(after)}{note or ''}{closing}", None, "", limit)


def opening(after: str) -> str:
    """What stands before a sentence to the model: a call is answered by the function, all else by the user."""
    special = _SPECIAL.findall(after)
    last = special[-1] if special else "<|start|>"  # the prompt ends inside a header
    if last == CALLED:
        return REPLY
    unfinished = {"<|message|>": "<|end|>"}.get(last, "" if last in _ENDS else "<|message|><|end|>")
    return f"{unfinished}<|start|>user<|message|>"


def _query(content: str) -> Action:
    try:
        arguments = json.loads(content)
    except (ValueError, RecursionError):
        return Action("invalid", "the arguments of functions.search are no JSON")
    query = arguments.get("query") if isinstance(arguments, dict) else None
    query = visible(query).strip() if isinstance(query, str) else ""
    return Action("search", query) if query else Action("invalid", 'functions.search takes {"query": "…"}')
