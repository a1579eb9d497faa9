"""Find the answer in a response: the final Harmony message, its last ``\\boxed{}``, or else its last number.

Harmony format: https://github.com/openai/harmony (``<|start|>role<|channel|>name<|message|>text<|end|>``).
"""

import re
from typing import NamedTuple

from .number import last_number

_MARKER = re.compile(r"<\|(start|end|message|channel|constrain|return|call|endoftext)\|>")
_ENDS = frozenset(("end", "return", "call", "endoftext"))
_CHANNELS = ("analysis", "commentary")
_FINAL_HEADER = "<|channel|>final<|message|>"
_STRIPPED_FINAL = "assistantfinal"
_STRIPPED_OTHER = re.compile("assistant(?:analysis|commentary)")
# "final" before a capital, a digit or a sign: "finally" and "final answer" are prose.
_STRIPPED_HEADER = re.compile(r"\s*final(?![a-z\s:])")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BLANKS = re.compile(r"\s*")
_BARE_END = re.compile(r"[\s$*.`)\]\\]*+\Z")
_MIN_OVERLAP = 16


class Extraction(NamedTuple):
    """What was found in a text. ``answer`` is None when there is none."""

    answer: str | None
    method: float  # 2 boxed, 1 last number, 0 none
    boxed_end: int  # index just past the last complete box in the text, -1 when there is none
    open_box: bool  # the last box has no closing brace


def response_of(query: str, prompt: str) -> str:
    """The response part of ``query``, which is the decoded prompt followed by the decoded response.

    OpenRLHF 0.9.3 (utils/agent.py) cuts a prompt that is too long from the left, so ``query`` may begin with a
    tail of ``prompt``; the longest such tail is taken. Where a tokenizer does not give the prompt back letter by
    letter, a Harmony query is cut behind its last ``<|start|>assistant``, in front of which no final message of
    this response can be. Raises ValueError where neither applies: the prompt must never be graded.
    """
    if query.startswith(prompt):
        return query[len(prompt) :]
    overlap = _longest_overlap(prompt, query)
    if overlap >= min(_MIN_OVERLAP, len(prompt)):
        return query[overlap:]
    _, start, response = query.rpartition("<|start|>assistant")
    if start:
        return response
    raise ValueError(
        f"found a query that does not begin with its prompt: query {query[:60]!r}, prompt {prompt[:60]!r}; "
        "wanted prompt + response; check the tokenizer's decode, it must give the prompt back unchanged"
    )


def _longest_overlap(prompt: str, query: str) -> int:
    """Length of the longest suffix of ``prompt`` that is a prefix of ``query`` (Knuth-Morris-Pratt, linear)."""
    pattern = query[: len(prompt)]
    if not pattern:
        return 0
    failure = [0] * len(pattern)
    state = 0
    for i in range(1, len(pattern)):
        while state and pattern[i] != pattern[state]:
            state = failure[state - 1]
        state += pattern[i] == pattern[state]
        failure[i] = state
    state = 0
    for char in prompt:
        while state and (state == len(pattern) or char != pattern[state]):
            state = failure[state - 1]
        state += char == pattern[state]
    return state


def open_channel(prompt: str) -> str | None:
    """What the prompt leaves open: the channel of a prefilled message, None where the prompt leaves nothing open.

    '' stands for a Harmony prompt that ends in ``<|start|>assistant``, behind which a header must come, and "think"
    for one that ends in ``<think>``, as models without Harmony have it.
    """
    header = prompt[prompt.rfind("<|start|>") :] if "<|start|>" in prompt else ""
    if header.startswith("<|start|>assistant"):
        header, message, content = header.partition("<|message|>")
        if message:
            return None if _MARKER.search(content) else _channel_name(header)
        return "" if all(m[1] not in _ENDS for m in _MARKER.finditer(header)) else None
    return "think" if prompt.endswith("<think>") or prompt.rstrip().endswith("<think>") else None


def _channel_name(header: str) -> str:
    """Channel in a message header such as ``<|start|>assistant<|channel|>final <|constrain|>json``, '' if none."""
    words = header.partition("<|channel|>")[2].replace("<|", " <|").split()
    return words[0] if words else ""


def final_message(response: str, channel: str | None = None) -> tuple[str | None, int, bool]:
    """The text to grade, its offset in ``response``, and whether a closing token was seen behind it.

    With Harmony markers only the last message of the final channel counts, and none means None. ``channel`` is what
    the prompt left open, see `open_channel`. Without markers, the text that is left when special tokens are stripped
    is understood (``analysis…assistantfinal…``); any other text is graded in full, but with channel '' it is None, for
    Harmony's header is missing. Of the text found, what follows its last ``</think>`` counts, and nothing where
    a ``<think>`` stays open.
    """
    if channel == "think":
        start = response.rfind("</think>") + len("</think>")
        if start < len("</think>"):
            return None, 0, False
        text, offset, closed = final_message(response[start:])
        return text, start + offset, closed
    found = _usual_final(response) or _final(response, channel)
    return _behind_thoughts(*found) if found[0] and "think>" in found[0] else found


def _final(response: str, channel: str | None) -> tuple[str | None, int, bool]:
    if "<|" in response and (markers := list(_MARKER.finditer(response))):
        if channel or any(m[1] not in _ENDS for m in markers):
            return _final_by_markers(response, markers, channel)
        # Text without headers that ends in a closing token, as chat templates without channels give it.
        text, offset, _ = _final_by_words(response[: markers[0].start()], channel)
        return text, offset, True
    return _final_by_words(response, channel)


def _final_by_words(text: str, channel: str | None) -> tuple[str | None, int, bool]:
    """`final_message` of a text without markers."""
    if channel not in (None, "", "final"):
        return None, 0, False
    cut = text.rfind(_STRIPPED_FINAL)
    if cut >= 0:
        cut += len(_STRIPPED_FINAL)
        later = _STRIPPED_OTHER.search(text, cut)
        return text[cut : later.start() if later else None], cut, later is not None
    if channel == "":
        header = _STRIPPED_HEADER.match(text)
        return (text[header.end() :], header.end(), False) if header else (None, 0, False)
    if channel is None and text.lstrip().startswith(_CHANNELS):
        return None, 0, False
    return text, 0, False


def _usual_final(response: str) -> tuple[str, int, bool] | None:
    """`final_message` where the response ends in a plain final message, as it nearly always does; else None."""
    header = response.rfind(_FINAL_HEADER)
    if header < 0 or not (header == 0 or response.endswith("<|start|>assistant", 0, header)):
        return None
    start = header + len(_FINAL_HEADER)
    end = response.find("<|", start)
    closed = end >= 0
    if closed and response[end:] not in ("<|return|>", "<|end|>"):
        return None
    if response.find("<|return|>", 0, header) >= 0 or response.find("<|endoftext|>", 0, header) >= 0:
        return None
    return response[start : end if closed else None], start, closed


def _behind_thoughts(text: str, offset: int, closed: bool) -> tuple[str | None, int, bool]:
    """What follows the last ``</think>``, as models without Harmony mark it; None where thinking never ends."""
    start = text.rfind("</think>") + len("</think>")
    start = start if start >= len("</think>") else 0
    return (None, 0, False) if text.find("<think>", start) >= 0 else (text[start:], offset + start, closed)


def _final_by_markers(response: str, markers: list[re.Match], channel: str | None) -> tuple[str | None, int, bool]:
    best: tuple[str | None, int, bool] = (None, 0, False)
    header_start = 0
    content_start = 0 if channel else -1  # -1: inside a header
    is_final = channel == "final"
    for m in markers:
        kind = m[1]
        if kind == "message":
            if content_start < 0:
                header = response[header_start : m.start()]
                role = header.partition("<|channel|>")[0].removeprefix("<|start|>")
                is_final = _channel_name(header) == "final" and role.strip() in ("", "assistant")
            elif is_final:
                best = response[content_start : m.start()], content_start, False
                is_final = False
            content_start = m.end()
        elif content_start >= 0:
            if is_final:
                best = response[content_start : m.start()], content_start, kind in _ENDS
            content_start, header_start, is_final = -1, m.start(), False
            if kind in _ENDS:
                header_start = m.end()
        elif kind == "start":
            header_start = m.start()
        if kind in ("return", "endoftext"):  # nothing behind the end of the response counts
            return best
    if content_start >= 0 and is_final:
        return response[content_start:], content_start, False
    return best


def last_boxed(text: str) -> tuple[str | None, int]:
    """Content of the last ``\\boxed{…}`` with nested braces, and the index just past it.

    Returns ``(None, -1)`` where there is no box, ``(None, len(text))`` where the last one is not closed or
    is a bare ``\\boxed`` with which the text ends.
    """
    start = len(text)
    while (start := text.rfind("\\boxed", 0, start)) >= 0:
        i = _BLANKS.match(text, start + 6).end()
        if text[i : i + 1] != "{":  # \boxedx, or a mention of \boxed
            if _BARE_END.match(text, i):
                return None, len(text)
            continue
        end = text.find("}", i)
        content = text[i + 1 : end]
        if end >= 0 and "{" not in content and "\\" not in content:
            return content, end + 1
        depth = 0
        for m in _BRACE.finditer(text, i):
            brace = m[0]
            if brace == "{":
                depth += 1
            elif brace == "}":
                depth -= 1
                if depth == 0:
                    return text[i + 1 : m.start()], m.end()
        return None, len(text)
    return None, -1


def extract_answer(text: str, fallback: bool = True) -> Extraction:
    """Answer of a final message: its last box, or with ``fallback`` its last number where it has no box at all.

    An empty or unclosed last box is no answer: neither an earlier box nor a number replaces it.
    """
    answer, end = last_boxed(text)
    if answer is not None:
        blank = not answer.strip()
        return Extraction(None if blank else answer, 0.0 if blank else 2.0, end, False)
    if end >= 0:
        return Extraction(None, 0.0, -1, True)
    number = last_number(text) if fallback else None
    return Extraction(number, 0.0 if number is None else 1.0, -1, False)
