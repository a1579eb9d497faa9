"""Find the answer in a response: the final Harmony message, its last ``\\boxed{}``, or else its last number.

Harmony format: https://github.com/openai/harmony (``<|start|>role<|channel|>name<|message|>text<|end|>``).
"""

import re
from typing import NamedTuple

_MARKER = re.compile(r"<\|(start|end|message|channel|constrain|return|call|endoftext)\|>")
_ENDS = frozenset(("end", "return", "call", "endoftext"))
_CHANNELS = ("analysis", "commentary", "final")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_DIGIT = re.compile(r"[0-9]")
_NUMBER_CHARS = "0123456789,./-\u2212"
_DECIMAL = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_NUMBER = re.compile(rf"-?(?:{_DECIMAL})(?:/(?:{_DECIMAL}))?")
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
    this response can stand. Raises ValueError where neither applies: the prompt must never be graded.
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
    """Channel of an assistant message that the prompt leaves open (a prefilled header), None when there is none."""
    header = prompt[prompt.rfind("<|start|>") :] if "<|start|>" in prompt else ""
    if not header.startswith("<|start|>assistant") or "<|message|>" not in header:
        return None
    header, _, content = header.partition("<|message|>")
    return None if _MARKER.search(content) else _channel_name(header)


def _channel_name(header: str) -> str:
    """Channel in a message header such as ``<|start|>assistant<|channel|>final <|constrain|>json``, '' if none."""
    words = header.partition("<|channel|>")[2].replace("<|", " <|").split()
    return words[0] if words else ""


def final_message(response: str, channel: str | None = None) -> tuple[str | None, int, bool]:
    """The text to grade, its offset in ``response``, and whether a closing token was seen behind it.

    With Harmony markers only the last message of the final channel counts, and none means None. ``channel`` is the
    channel the prompt left open, see `open_channel`. Without markers, the text that is left when special tokens are
    stripped is understood (``analysis…assistantfinal…``); any other text is graded whole.
    """
    if "<|" in response and (markers := list(_MARKER.finditer(response))):
        return _final_by_markers(response, markers, channel)
    if channel not in (None, "final"):
        return None, 0, False
    cut = response.rfind("assistantfinal")
    if cut >= 0:
        cut += len("assistantfinal")
        return response[cut:], cut, False
    if channel is None and response.startswith(_CHANNELS[:2]):
        return None, 0, False
    return response, 0, False


def _final_by_markers(response: str, markers: list[re.Match], channel: str | None) -> tuple[str | None, int, bool]:
    if channel is None and all(m[1] in _ENDS for m in markers):
        # Plain text that merely ends with a closing token, as a chat template without channels gives it.
        return response[: markers[0].start()], 0, True
    best: tuple[str | None, int, bool] = (None, 0, False)
    header_start = 0
    content_start = -1 if channel is None else 0  # -1: inside a header
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

    Returns ``(None, -1)`` where there is no box, ``(None, len(text))`` where the last one is not closed.
    """
    start = len(text)
    while (start := text.rfind("\\boxed", 0, start)) >= 0:
        i = start + 6
        while i < len(text) and text[i].isspace():
            i += 1
        if text[i : i + 1] != "{":  # \boxedx, or \boxed at the end
            continue
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


def last_number(text: str) -> str | None:
    """The last number in ``text`` (ASCII digits, thousands commas, decimals, ``a/b``), None when there is none.

    A minus behind a letter, digit or closing bracket is a subtraction, not a sign.
    """
    digit = _DIGIT.search(text[::-1])
    if digit is None:
        return None
    end = len(text) - digit.start()
    start = len(text[:end].rstrip(_NUMBER_CHARS))
    run = text[start:end].replace("\u2212", "-")
    found = None
    for found in _NUMBER.finditer(run):  # noqa: B007  the last one is wanted
        pass
    number = found[0]
    before = run[found.start() - 1] if found.start() else text[start - 1 : start]
    if number[0] == "-" and (before.isalnum() or before in tuple(")]}.,")):
        number = number[1:]
    return number


def extract_answer(text: str, fallback: bool = True) -> Extraction:
    """Answer of a final message: its last box, or with ``fallback`` its last number where it has no box at all.

    An empty or unclosed last box is no answer: neither an earlier box nor a number stands in for it.
    """
    answer, end = last_boxed(text)
    if answer is not None:
        blank = not answer.strip()
        return Extraction(None if blank else answer, 0.0 if blank else 2.0, end, False)
    if end >= 0:
        return Extraction(None, 0.0, -1, True)
    number = last_number(text) if fallback else None
    return Extraction(number, 0.0 if number is None else 1.0, -1, False)
