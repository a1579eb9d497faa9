"""What the retriever found as token ids, within a limit, such that no passage gets out of its block.

A corpus is not ours: its text may hold the protocol's tags, special tokens written out, control characters, or a
megabyte without a space. Tags lose their bracket, and passages are encoded as text alone, never as special tokens.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rft.agents.actions import Observation

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rft.retriever.client import Passage

CUT = " … (the rest is left out)"
USUAL_CHARACTERS = 8  # a token's, or more, of nearly any text: what is encoded first, not the whole of a megabyte
TOKEN_CHARACTERS = 128  # the longest token of o200k_harmony: four times more is encoded until the limit or this is hit
BROKEN = "\ufffd"  # what a decoder writes for half a character
_KEPT = "\n\t"
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn")  # control, format (bidi marks, joiners), surrogates, private, unassigned
# Invisible too, though letters or marks by category: fillers and variation selectors (Unicode's default ignorables).
_IGNORED = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0")
_IGNORED |= {chr(code) for code in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))}
_OPENING = re.compile(r"[<\ufe64\uff1c](?=[\s/\uff0f]*(?:search|information|answer|[|\uff5c]))", re.IGNORECASE)
_LINES = re.compile(r"\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


def harmless(text: str) -> str:
    """Text of a corpus without what could be read as ours: `<` before a tag's name or a bar is `‹`, hidden characters
    are gone, every end of line is a newline. Wide forms of the signs count as the signs."""
    return _OPENING.sub("‹", visible(_LINES.sub("\n", text)))


def visible(text: str) -> str:
    """Text without hidden characters; a query of nothing else is empty, and a lone surrogate cannot be sent."""
    shown = (c for c in text if c in _KEPT or (unicodedata.category(c) not in _HIDDEN and c not in _IGNORED))
    return "".join(shown)


def listed(passages: "Sequence[Passage]", characters: int) -> tuple[str, bool]:
    """The passages one below the other, numbered, at most so many characters of them, and whether that cut them."""
    lines, left, cut = [], characters, False
    for number, passage in enumerate(passages, 1):
        title = " ".join(harmless(passage.title[: left + 1]).split())
        head = f"Doc {number}(Title: {title}) " if title else f"Doc {number}: "
        text = head + harmless(passage.text[: left + 1]).strip()
        cut = cut or len(text) > left or len(passage.text) > left + 1
        lines.append(text[:left])
        left -= len(lines[-1]) + 1
        if left <= 0:
            cut = cut or number < len(passages)
            break
    return "\n".join(lines), cut


def text_ids(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Ids of a text in which nothing is a special token, whatever it looks like."""
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def frame_ids(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Ids of a text of ours, in which special tokens are what they look like."""
    return tokenizer(text, add_special_tokens=False, split_special_tokens=False)["input_ids"]


def framed(
    tokenizer: "PreTrainedTokenizerBase", before: str, passages: "list[Passage] | None", after: str, limit: int
) -> Observation:
    """The passages between two texts of ours, which are always whole; passages are cut at a token, and it says so.

    Raises:
        ValueError: the limit leaves no room for a passage.
    """
    head, tail = frame_ids(tokenizer, before), frame_ids(tokenizer, after)
    room = limit - len(head) - len(tail)
    if passages is None:
        if room < 0:
            raise ValueError(f"found a limit of {limit} tokens for an observation, wanted {limit - room} or more")
        return Observation(head + tail, False)
    mark = text_ids(tokenizer, CUT)
    if room <= len(mark):
        least = limit - room + len(mark) + 1
        raise ValueError(f"found a limit of {limit} tokens for an observation, wanted {least} or more")
    characters = USUAL_CHARACTERS
    text, cut = listed(passages, room * characters)
    while len(body := text_ids(tokenizer, text)) <= room and cut and characters < TOKEN_CHARACTERS:
        characters *= 4
        text, cut = listed(passages, room * characters)
    if cut or len(body) > room:
        body = [*whole(tokenizer, body[: room - len(mark)]), *mark]
        cut = True
    return Observation(head + body + tail, cut)


def whole(tokenizer: "PreTrainedTokenizerBase", ids: list[int]) -> list[int]:
    """The ids without the beginning of a character whose end was cut off; a character has four bytes at most."""
    for dropped in range(min(4, len(ids) + 1)):
        kept = ids[: len(ids) - dropped]
        if not tokenizer.decode(kept[-8:], clean_up_tokenization_spaces=False).endswith(BROKEN):
            return kept
    return ids
