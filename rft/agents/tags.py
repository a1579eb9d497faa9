"""The protocol of Search-R1 (arXiv 2503.09516): `<search>query</search>`, `<information>…</information>`,
`<answer>…</answer>`, as text inside Harmony messages.

The tags are ordinary text of the open message, in any channel. gpt-oss reasons in its analysis message, so there it
searches; a turn ends at the closing tag, before the model could end the message, and what was found is written into
that same message, so that the reasoning goes on behind it. The answer may stand there too or in the final message:
`<|end|>` (200007) between the two ends no turn. A turn that the model ends by itself, with `<|return|>`, `<|call|>` or
`<|endoftext|>` (200002, 200012 and 199999, the ids of its generation_config), has closed the message; what follows is
then a message of the user's, and a new one of the assistant's.
"""

import re
from typing import TYPE_CHECKING

from rft.agents.actions import Action, Observation
from rft.agents.observations import framed, visible

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rft.retriever.client import Passage

INSTRUCTION = (
    "Answer the question. Think first. Whenever you lack knowledge, search with <search>query</search>: the passages "
    "found stand between <information> and </information> below it. Search as often as you need. When you know the "
    "answer, write it between <answer> and </answer>, as short as it can be, for example <answer>Beijing</answer>."
)
LAST_TURN = "This was the last search. Write the answer between <answer> and </answer> now."
CLOSING = {"</search>": "search", "</answer>": "answer"}
SPECIAL = re.compile(r"<\|[a-z_]+\|>")
ENDED = ("<|return|>", "<|call|>", "<|endoftext|>")  # by the model itself: nothing can follow in this message
_CLOSE = re.compile("|".join(CLOSING))


def stops(last_turn: bool) -> dict:
    """Fields of SamplingParams that end a turn; a last turn may not go on after a search either."""
    return {"stop": list(CLOSING), "include_stop_str_in_output": True}


def parse(text: str) -> Action:
    """What a turn asks for: the first closing tag decides, and the last opening one of its name before it.

    Args:
        text: the sampled tokens, decoded, special tokens kept; what the last token holds behind a closing tag is
            nothing.
    """
    closing = _CLOSE.search(text)
    if closing is None:
        return Action("invalid", "it has neither <search>query</search> nor <answer>answer</answer>")
    kind = CLOSING[closing[0]]
    before, opened, content = text[: closing.start()].rpartition(f"<{kind}>")
    if not opened:
        return Action("invalid", f"{closing[0]} closes what was not opened")
    if SPECIAL.search(content):
        return Action("invalid", f"<{kind}> and {closing[0]} stand in two messages")
    if before.rfind("<information>") > before.rfind("</information>"):  # invented by the model
        return Action("invalid", f"<{kind}> stands inside of <information>")
    content = visible(content).strip()
    return Action(kind, content) if content or kind == "answer" else Action("invalid", "the query is empty")


def invalid(why: str) -> str:
    """The sentence back after a turn that neither searches nor answers."""
    return f"That turn is not valid: {why}. Search with <search>query</search> or answer with <answer>answer</answer>."


def observation(
    passages: "list[Passage] | None",
    *,
    note: str | None,
    after: str,
    limit: int,
    tokenizer: "PreTrainedTokenizerBase",
) -> Observation:
    """What is written after a turn.

    Args:
        passages: what was found; None where nothing was searched for.
        note: a sentence to the model behind it.
        after: the turn, decoded.
        limit: tokens that all of it may have.
        tokenizer: of the model.

    Raises:
        ValueError: the limit is too small.
    """
    opening, closing = around(after)
    note = f"{note}\n\n" if note else ""
    if passages is None:
        return framed(tokenizer, f"{opening}\n\n{note}{closing}", None, "", limit)
    return framed(tokenizer, f"{opening}\n\n<information>", passages, f"</information>\n\n{note}{closing}", limit)


def around(after: str) -> tuple[str, str]:
    """What opens a message to write into after a turn, and what closes it: nothing where the turn left one open."""
    special = SPECIAL.findall(after)
    last = special[-1] if special else "<|message|>"
    if last in ENDED:
        return "<|start|>user<|message|>", "<|end|><|start|>assistant"
    if last == "<|end|>":
        return "<|start|>assistant<|channel|>analysis<|message|>", ""
    return ("", "") if last == "<|message|>" else ("<|message|>", "")  # else a header that the limit cut
