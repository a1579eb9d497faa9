"""Conversations to learn from, as tokens and masks: what the model itself would have sampled, and nothing else.

Masks are made from the messages of the final rendering. Harmony's template drops the analysis of earlier turns, so that
the length of a beginning, rendered alone, says nothing of where its last turn stands in the whole.
"""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from jinja2 import TemplateError

from rft.problems import shorten

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

INSTRUCTING = ("system", "developer")
ROLES = (*INSTRUCTING, "user", "assistant")
_SPECIAL = re.compile(r"<\|[a-z0-9_]+\|>")
_ENDS = ("<|end|>", "<|return|>", "<|call|>")


class Tokens(NamedTuple):
    """A conversation, ready to train on."""

    ids: list[int]
    learned: list[bool]  # as long as `ids`: whether the loss has this token, given those before it


class Message(NamedTuple):
    """A message as it stands in a rendering."""

    role: str
    channel: str  # empty where it names none
    text: str
    sampled: int  # place of the first token behind `<|start|>` and the role: what a generation prompt leaves to sample
    end: int  # place behind its last token


class Learnable(NamedTuple):
    """What a file's rows come to."""

    conversations: list[Tokens]
    too_long: int  # conversations left out: one that is cut would teach to stop in the middle


def learnable(
    rows: Iterable[dict],
    tokenizer: "PreTrainedTokenizerBase",
    max_len: int,
    *,
    input_key: str = "input",
    output_key: str | None = "output",
    every_turn: bool = False,
    options: dict | None = None,
) -> Learnable:
    """All rows as tokens and masks.

    Args:
        max_len: tokens of a conversation; longer ones are left out and counted.
        input_key, output_key, every_turn: see `conversations`.
        options: of `apply_chat_template`: date and reasoning effort, as in the prompts of GRPO
            (`rft.hooks.chat_date.dated`, `rft.hooks.reasoning_effort.chosen`).

    Raises:
        ValueError: a row that is no conversation to learn from, by its number; or no row fits.
    """
    found, longest, too_long = [], 0, 0
    for number, row in enumerate(rows, 1):
        try:
            made = [
                tokens(tokenizer, messages, options or {})
                for messages in conversations(row, input_key, output_key, every_turn)
            ]
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from None
        for each in made:
            longest = max(longest, len(each.ids))
            if len(each.ids) > max_len:
                too_long += 1
            else:
                found.append(each)
    if not found:
        raise ValueError(
            f"found {too_long} conversations, none within {max_len} tokens (the longest has {longest}); wanted one at "
            f"least; pass --max_len {longest}, or other rows"
        )
    return Learnable(found, too_long)


def conversations(
    row: dict, input_key: str = "input", output_key: str | None = "output", every_turn: bool = False
) -> list[list[dict]]:
    """The conversations of a row, each ending with the turn that is learned.

    One that ends with the row's last turn; with `every_turn` one for each turn of the assistant, cut behind it. A turn
    is learned as it is sampled, with its analysis, and later ones see it as they would have seen it, without.

    Args:
        row: `input_key` has text or chat messages; `output_key`, where it is one, the assistant's message behind them,
            alone or in a list, with the reasoning in `thinking` and the answer in `content`.

    Raises:
        ValueError: what is there instead.
    """
    messages = _messages(row, input_key, output_key)
    for place, message in enumerate(messages, 1):
        if fault := _fault(message):
            raise ValueError(f"message {place} {fault}")
        if place > 1 and message["role"] in INSTRUCTING:
            raise ValueError(
                f"message {place} is of role {message['role']!r}, wanted it first: gpt-oss's template reads "
                "instructions in the first message alone and drops others; make one message of them, or remove it"
            )
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns or turns[-1] != len(messages) - 1:
        role = messages[-1]["role"] if messages else "none"
        raise ValueError(
            f"found {role} as the last message's role, wanted a turn of the assistant to learn; pass --output_key with "
            "the field that has it, or add it"
        )
    if turns[0] == 0 or any(messages[place - 1]["role"] == "assistant" for place in turns):
        raise ValueError("found a turn of the assistant that answers nothing, wanted a user's message before each")
    learned = turns if every_turn else turns[-1:]
    for place in learned:
        if not messages[place].get("thinking", "").strip():
            raise ValueError(
                f"message {place + 1} has no 'thinking', wanted the reasoning there: a turn without it teaches the "
                "model to answer without; make the rows with .venv/bin/python -m rft.data make, or from samples with "
                ".venv/bin/python data/make_sft_from_samples.py"
            )
    return [messages[: place + 1] for place in learned]


def tokens(tokenizer: "PreTrainedTokenizerBase", messages: list[dict], options: dict) -> Tokens:
    """A conversation as the template renders it, and a mask of its last turn: analysis, answer and what ends them.

    Learned is exactly what generation would have sampled behind the prompt, which ends with `<|start|>assistant`: also
    the header of the second message, and the token that ends the turn.

    Args:
        messages: one of `conversations`.
        options: of `apply_chat_template`.

    Raises:
        ValueError: the template renders the prompt otherwise once it is answered, or not these messages.
    """
    ids = _ids(tokenizer, messages, options)
    prompt = _ids(tokenizer, messages[:-1], {**options, "add_generation_prompt": True})
    turn = [message for message in messages_of(tokenizer, ids) if message.end > len(prompt)]
    wanted = [("analysis", messages[-1]["thinking"]), ("final", messages[-1]["content"])]
    found = [(message.channel, message.text) for message in turn]
    if found != wanted or any(message.role != "assistant" for message in turn):
        raise ValueError(
            f"found the last turn rendered as {shorten(found, 200)}, wanted {shorten(wanted, 200)}; use the "
            "chat_template.jinja that came with the checkpoint"
        )
    if turn[0].sampled != len(prompt) or ids[: len(prompt)] != prompt or turn[-1].end != len(ids):
        raise ValueError(
            f"found {shorten(tokenizer.decode(ids), 200)} behind another prompt than "
            f"{shorten(tokenizer.decode(prompt), 200)}, wanted the prompt that is sampled from; use the "
            "chat_template.jinja that came with the checkpoint"
        )
    return Tokens(ids, [place >= len(prompt) for place in range(len(ids))])


def messages_of(tokenizer: "PreTrainedTokenizerBase", ids: list[int]) -> Iterator[Message]:
    """The messages of a rendering, by its special tokens: `<|start|>role<|channel|>name<|message|>text<|end|>`."""
    start, channel, body = tokenizer.convert_tokens_to_ids(["<|start|>", "<|channel|>", "<|message|>"])
    ends = set(tokenizer.convert_tokens_to_ids(list(_ENDS)))
    place = 0
    while place < len(ids):
        if ids[place] != start:
            raise ValueError(f"found {tokenizer.decode(ids[place : place + 1])!r} between messages, wanted <|start|>")
        opened = _next(ids, {body}, place, "<|message|>", tokenizer)
        closed = _next(ids, ends, opened, "the token that ends a message", tokenizer)
        header = ids[place + 1 : opened]
        named = header.index(channel) if channel in header else len(header)
        role, name, text = (
            tokenizer.decode(part, clean_up_tokenization_spaces=False)
            for part in (header[:named], header[named + 1 :], ids[opened + 1 : closed])
        )
        yield Message(role, name, text, place + 1 + named, closed + 1)
        place = closed + 1


def _next(ids: list[int], wanted: set[int], place: int, name: str, tokenizer: "PreTrainedTokenizerBase") -> int:
    found = next((index for index in range(place, len(ids)) if ids[index] in wanted), None)
    if found is None:
        raise ValueError(f"found {shorten(tokenizer.decode(ids[place:]), 100)} without an end, wanted {name}")
    return found


def _ids(tokenizer: "PreTrainedTokenizerBase", messages: list[dict], options: dict) -> list[int]:
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except TemplateError as error:
        raise ValueError(
            f"found a chat template that fails here ({error}), wanted one that renders the row; correct the row, or "
            "use the chat_template.jinja that came with the checkpoint"
        ) from None
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _messages(row: dict, input_key: str, output_key: str | None) -> list[dict]:
    """Input and output as one list of messages."""
    if not isinstance(row, dict):
        raise ValueError(f"found {shorten(row)}, wanted an object with {input_key!r}")
    for key in filter(None, (input_key, output_key)):
        if key not in row:
            raise ValueError(f"found no field {key!r} ({', '.join(row)}), wanted it; pass --input_key or --output_key")
    asked = row[input_key]
    asked = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    answer = row[output_key] if output_key else []
    if isinstance(answer, str):
        raise ValueError(
            f"field {output_key!r} is text, wanted an assistant's message with 'thinking' and 'content'; make the file "
            "again: .venv/bin/python -m rft.data make"
        )
    answer = [answer] if isinstance(answer, dict) else answer
    if not isinstance(asked, list) or not isinstance(answer, list):
        raise ValueError(f"found {shorten(asked)} and {shorten(answer)}, wanted lists of chat messages")
    whole = [*asked, *answer]  # a table has null where another row has a field; gpt-oss's template reads it as text
    return [{k: v for k, v in each.items() if v is not None} if isinstance(each, dict) else each for each in whole]


def _fault(message: object) -> str | None:
    """What is wrong with a message, or None."""
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        return f"is {shorten(message)}, wanted an object with 'role', one of {', '.join(ROLES)}, and 'content'"
    if not isinstance(message.get("content"), str) or not message["content"].strip():
        return f"has content {shorten(message.get('content'))}, wanted some text"
    thinking = message.get("thinking")
    if thinking is not None and (not isinstance(thinking, str) or message["role"] != "assistant"):
        return f"has thinking {shorten(thinking)}, wanted text, in the assistant's messages alone"
    if special := _SPECIAL.search(message["content"] + (thinking or "")):
        return f"has {special[0]} in its text, which the tokenizer takes for the format's own; remove it or the row"
    return None
