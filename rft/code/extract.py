"""Find the program in a model's text. Lines are read, nothing is parsed or run: the text is the model's.

Only the final message belongs here; who has a Harmony response takes `rft.grading.final_message` first. One program is
taken, by its place in the text and never by how it fares, so several attempts in one answer are worth no more than one.
"""

import re
from typing import NamedTuple

METHODS = ("none", "text", "continued", "unclosed", "markers", "block")  # a log's number for a method is its place here
_PYTHON = frozenset(("", "python", "python3", "py", "py3"))
_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([^`]*)")
_BEGIN, _DONE = "[BEGIN]", "[DONE]"
_TOKEN = re.compile(r"<\|[\w ]{1,40}\|>")
_SPECIAL = re.compile(rf"(?:{_TOKEN.pattern}|</?s>|<eos>|<pad>|<end_of_turn>)\Z")
# At the margin these end a function that continues a prompt: the published stop words and their kin.
_STOPS = re.compile(r"(?:class|def|async def|if|print|from|import|assert)\b|[@#]|<\|")
_CODE = re.compile(r"(?:def|class|async def|import|from|print|if|for|while|with|try|@)\b|@\w|\w+ *(?:=|\()")


class Opened(NamedTuple):
    """What of a program a prompt ends in, so that a completion continues it."""

    text: str
    ends: str  # with what the program ends: "fence", "[DONE]", or "function", with the first statement outside of it


class _Found(NamedTuple):
    program: str
    method: str


def extract(response: str, entry_point: str | None = None, opened: Opened | None = None) -> tuple[str | None, str]:
    """The program that a response states, and how it was found.

    Of several fenced blocks (tagged Python, or not at all) and `[BEGIN]`…`[DONE]` sections the last one counts that
    defines the entry point, or else the last one. A text without either is the program itself if it defines the entry
    point, or, where none is known, looks like Python.

    Args:
        response: the final message, or the whole response of a model without channels.
        entry_point: the function that the tests call.
        opened: what the prompt has left open (`open_program`). The response goes on with it, up to the end of its block
            or function, unless it begins with a block of its own.

    Returns:
        The program, None where there is none or it is blank, and the method: "block", "markers" (`[BEGIN]`),
        "unclosed" (a block or section that the text ends in), "continued" (behind an open prompt, or up to a fence
        that nothing has opened), "text", "none".
    """
    text = _without_special(response.replace("\r\n", "\n"))
    if opened and not _begins_with_block(text):
        more = _first_part(text, opened.ends)
        return (opened.text + more, "continued") if more.strip() else (None, "none")
    found = _candidates(text, entry_point)
    if not found and (_defines(text, entry_point) if entry_point else _looks_like_python(text)):
        found = [_Found(text, "text")]
    found = [each for each in found if each.program.strip()]
    if not found:
        return None, "none"
    best = next((each for each in reversed(found) if _defines(each.program, entry_point)), found[-1])
    return best.program.strip("\n"), best.method


def open_program(prompt: str, entry_point: str | None = None) -> Opened | None:
    """The program that a prompt leaves open, None where it leaves none.

    That is an open ```` ```python ```` block, an open `[BEGIN]` section, or a prompt that is Python as a whole and
    defines the entry point, as HumanEval's are for base models.
    """
    text = _TOKEN.split(prompt.replace("\r\n", "\n"))[-1]  # earlier messages have ended
    lines, start, fence = text.split("\n"), None, None
    for number, line in enumerate(lines):
        if fence:
            if _closes(line, fence):
                start, fence = None, None
        elif opens := _opens(line):
            start, fence = number + 1, opens
        elif line.strip() == _BEGIN:
            start = number + 1
        elif line.rstrip().endswith(_DONE):
            start = None
    if start is not None:
        python = not fence or fence[2] in _PYTHON
        return Opened("\n".join(lines[start:]), "fence" if fence else _DONE) if python else None
    whole = entry_point and _defines(text, entry_point) and _looks_like_python(text)
    return Opened(text, "function") if whole else None


def _candidates(text: str, entry_point: str | None) -> list[_Found]:
    """The blocks and sections of a text, in their order."""
    lines, found = text.split("\n"), []
    begun: int | None = None  # the line behind [BEGIN]
    opened: tuple[str, str, str] | None = None  # indent, fence and tag of the open block
    start = 0
    blocks_in_section = False
    for number, line in enumerate(lines):
        if opened:
            if _closes(line, opened) or (begun is not None and line.strip() == _DONE):
                _add(found, _dedented(lines[start:number], opened[0]), "block", opened[2])
                opened = None
                if line.strip() == _DONE:
                    begun = None
        elif opens := _opens(line):
            before = "\n".join(lines[start:number])
            if not found and begun is None and not opens[2] and _is_code(before, entry_point):
                found.append(_Found(before, "continued"))  # the prompt has opened it
            else:
                opened, blocks_in_section = opens, True
            start = number + 1
        elif line.lstrip().startswith(_BEGIN):
            rest = line.lstrip().removeprefix(_BEGIN)
            lines[number], begun, blocks_in_section = rest, number, False
            if rest.rstrip().endswith(_DONE):
                lines[number] = rest.rstrip().removesuffix(_DONE)
                _add(found, lines[number].strip(), "markers")
                begun = None
        elif line.rstrip().endswith(_DONE):
            lines[number] = line.rstrip().removesuffix(_DONE)
            if begun is not None and not blocks_in_section:
                _add(found, "\n".join(lines[begun : number + 1]), "markers")
            elif not found and begun is None and _is_code(before := "\n".join(lines[start : number + 1]), entry_point):
                found.append(_Found(before, "continued"))
            begun, start = None, number + 1
    if opened:
        _add(found, _dedented(lines[start:], opened[0]).removesuffix(_DONE), "unclosed", opened[2])
    elif begun is not None and not blocks_in_section:
        _add(found, "\n".join(lines[begun:]), "unclosed")
    return found


def _add(found: list[_Found], program: str, method: str, tag: str = "") -> None:
    if tag in _PYTHON:
        found.append(_Found(program, method))


def _opens(line: str) -> tuple[str, str, str] | None:
    """Indent, fence and tag where a line opens a fenced block."""
    match = _FENCE.fullmatch(line)
    if not match:
        return None
    words = match[3].strip("{}. \t").lower().split()
    return match[1], match[2], words[0] if words else ""


def _closes(line: str, opened: tuple[str, str, str]) -> bool:
    """Whether a line closes a block: as many of its fence's characters, or more, and nothing else but `[DONE]`."""
    bare = line.strip().removesuffix(_DONE).rstrip()
    return len(bare) >= len(opened[1]) and not bare.strip(opened[1][0])


def _dedented(lines: list[str], indent: str) -> str:
    """A block in a list is indented as its fence is."""
    return "\n".join(line.removeprefix(indent) for line in lines)


def _first_part(text: str, ends: str) -> str:
    """What continues an open program: up to a fence or `[DONE]`, or to the first statement outside of its function."""
    kept = []
    for number, line in enumerate(text.split("\n")):
        if _opens(line) or line.strip() == _BEGIN or (number and ends == "function" and _STOPS.match(line)):
            break
        if line.rstrip().endswith(_DONE):
            kept.append(line.rstrip().removesuffix(_DONE))
            break
        kept.append(line)
    return "\n".join(kept)


def _begins_with_block(text: str) -> bool:
    first = text.lstrip().partition("\n")[0]
    return bool(_opens(first)) or first.startswith(_BEGIN)


def _defines(program: str, entry_point: str | None) -> bool:
    """Whether a line at the margin defines the entry point; True where none is known."""
    if not entry_point:
        return True
    name = re.escape(entry_point)
    definition = rf"^(?:(?:async[ \t]+)?def|class)[ \t]+{name}\b|^{name}[ \t]*[=:](?!=)"
    return bool(re.search(definition, program, re.MULTILINE))


def _is_code(text: str, entry_point: str | None) -> bool:
    return _defines(text, entry_point) if entry_point else _looks_like_python(text)


def _looks_like_python(text: str) -> bool:
    """Whether the first line that is not blank or a comment could be Python."""
    first = next((line for line in text.split("\n") if line.strip() and not line.startswith("#")), "")
    return bool(_CODE.match(first))


def _without_special(text: str) -> str:
    """The text without the special tokens that it ends in, as templates without channels leave them."""
    end = len(text)
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        match = _SPECIAL.search(text, max(0, end - 60), end)
        if not match:
            return text if end == len(text) else text[:end]
        end = match.start()
