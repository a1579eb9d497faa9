"""The last number of a text, where it is no part of an expression."""

import re
import unicodedata

from .decoration import SCALES

_DIGIT = re.compile(r"[0-9]")
_RUN = re.compile(r"[0-9,./\u2212-]+")
_DECIMAL = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_NUMBER = re.compile(rf"[-\u2212]?(?:{_DECIMAL})(?:/(?:{_DECIMAL}))?")
_FRACTION = re.compile(rf"\\[dtc]?frac ?\{{-?(?:{_DECIMAL})\}} ?\{{(?:{_DECIMAL})\}}")
_SPACING = re.compile(r"\\(?:left|right|q?quad)(?![A-Za-z])|(?<!\\)\\[;: ]")
_MAX_PASSED_OVER = 50
_MAX_FRACTION = 100
_MAX_RUN = 10_000  # characters; what is longer is no number
_WINDOW = 60  # characters that are looked at in front of a number, and as many behind it
_WORD_CHARS = 16  # of those, what is looked at for the word next to the number; no word that matters is longer

_LETTER = r"(?![aAI](?![A-Za-z]))[A-Za-z](?![A-Za-z])"  # a variable, and no word of one letter
_OPERAND = rf"(?:{_LETTER}|\(|\\[A-Za-z])"
# What follows a number in an expression.
_CONTINUES = re.compile(
    r"[A-Za-z](?![A-Za-z])| (?![mgshLCFNJWV](?![A-Za-z]))" + _LETTER + rf"|[(\[_](?! )| \({_OPERAND}"
    r"|[-+*/:\u2212](?=[A-Za-z0-9(\\])| ?[-\u2212\u2013*/] ?" + _OPERAND + rf"| ?\*\* ?{_OPERAND}"
    r"| ?\+| ?!| ?\^(?! ?\{? ?\\circ)| ?<(?![|/A-Za-z!])| ?<[A-Za-z](?![A-Za-z0-9>])| ?>|\{"
    r"| ?[\u0370-\u03ff\u00b1\u00b2\u00b3\u00b7\u00b9\u00bc-\u00be\u00d7\u00f7\u2070-\u2079\u2153-\u215e\u2190-\u2199"
    r"\u2200-\u220d\u220f-\u2233\u2260-\u226f\u22c5]"
    r"| ?\\(?!text|mathrm|mbox|circ|degree|end\{(?:align|equation|gather|split)|(?:black)?square|Box|implies|approx"
    r"|Rightarrow|hspace|[^A-Za-z}])"
)
_NEXT_WORD = re.compile(r"[ $*~-]{0,4}(?:\\[)\]])? ?(?:\\(?:text[a-z]*|mathrm|mbox) ?\{ ?)?([A-Za-z]+)")
_NEXT = "squared cubed plus minus mod modulo choose root sqrt pi binary repeating"
_CHANGING_NEXT = SCALES.union(_NEXT.split())
_BEFORE = "sqrt root log ln exp sin cos tan mod modulo base choose times plus minus over not than least most"
_CHANGING_BEFORE = frozenset(_BEFORE.split())
_WORD = re.compile(r"\\?[^\W\d_]+$")
_COMMANDS = tuple(f"\\{name}" for name in ("approx", "equiv", "Rightarrow", "implies", "therefore", "colon", "bf"))
_WRAPPING = ("text", "textbf", "textit", "mathbf", "mathrm", "mathsf", "mbox", "bm", "boldsymbol", "underline")
_WRAPPERS = tuple(f"\\{name}" for name in _WRAPPING)
_WRAPPED_WORDS = re.compile(r"\\(?:text[a-z]*|mathrm|mbox) ?\{[^{}]*\}$| \([A-Za-z ]{2,}\)$")
_BRACKET = re.compile(r"[()\[\]{}]")
_TAG = re.compile(r"<[/A-Za-z][^<>]*>$")
_TIMES = re.compile(r"[0-9)}\]]\s*\*{1,2}\s*$|\w\*{1,2}$|\w \* $")


def last_number(text: str) -> str | None:
    """The last number in ``text``: ASCII digits, thousands commas, decimals, ``a/b``, ``\\frac{a}{b}``; None if none.

    Digits within a word or an index (``eq2``, ``x_1``) are passed over. A number within an expression (``x-3``,
    ``4x``, ``2 + 5``, ``\\sqrt 5``, ``f(5)``, ``(2, 5)``, ``x \\ne 5``) or before a word that changes it
    (``5 million``) is no answer, and no earlier number replaces it.
    """
    if "\\" in text or "{,}" in text:
        text = _SPACING.sub(" ", text.replace("{,}", ",").replace("\\,", "").replace("\\!", ""))
    backwards, at = text[::-1], 0
    for _ in range(_MAX_PASSED_OVER):
        if (digit := _DIGIT.search(backwards, at)) is None:
            return None
        at = _RUN.match(backwards, digit.start()).end()
        start, end = len(text) - at, len(text) - digit.start()
        if end - start > _MAX_RUN:
            return None
        for found in _NUMBER.finditer(text, start, end):  # noqa: B007  the last one is wanted
            pass
        if (fraction := _fraction_that_ends(text, end)) is not None:
            return fraction or None
        before, after = text[max(0, found.start() - _WINDOW) : found.start()], text[end : end + _WINDOW]
        if (found.start() == start and before[-1:].isalpha() and "\\" not in _WORD.search(before)[0]) or (
            before.endswith("_")
        ):
            continue
        number = found[0]
        before += number[0] if number[0] in "-\u2212" else ""
        inside = _leads_into(before, after) or _goes_on(number, after)
        return None if inside else number.replace("\u2212", "-")
    return None


def _fraction_that_ends(text: str, end: int) -> str | None:
    """``\\frac{a}{b}`` of two numbers with its sign, ``b`` ending at ``end``; '' within an expression; else None."""
    start = text.rfind("\\", max(0, end - _MAX_FRACTION), end)
    m = _FRACTION.match(text, start) if start >= 0 else None
    if m is None or m.end() != end + 1:
        return None
    sign = "-" if text[start - 1 : start] in ("-", "\u2212") else ""
    before, after = text[max(0, start - _WINDOW) : start], text[end + 1 : end + _WINDOW]
    return "" if _leads_into(before, after) or _goes_on(m[0], after) else sign + m[0]


def _goes_on(number: str, after: str) -> bool:
    """Whether an expression continues behind a number, or a word changes it."""
    after = after.removeprefix("}")  # of a wrapper: behind other braces `_leads_into` has said no
    if "." in number and after.startswith(("..", "\u2026")):  # 0.333...
        return True
    if not after.strip(". \n$*)"):
        return False
    if _CONTINUES.match(after):
        return True
    word = _NEXT_WORD.match(after)
    return word is not None and word[1].lower() in _CHANGING_NEXT


def _leads_into(before: str, after: str) -> bool:
    """Whether what comes before a number, its sign included, makes it part of an expression."""
    bracket = _BRACKET.search(before[::-1])
    in_brackets = bracket is not None and bracket[0] in ("(", "[", "{")
    if in_brackets:
        opener = len(before) - bracket.end()
        head, inner = before[:opener], before[opener + 1 :].strip(" -\u2212")
        if head.endswith("\\"):
            if before[opener] == "{" or head.endswith("\\\\"):
                return True
            in_brackets = False  # \( and \[ open mathematics
        elif before[opener] == "{":
            if not head.endswith(_WRAPPERS):
                return True
            if not inner:
                return _leads_into(head[: head.rfind("\\")], after[1:])
        else:
            if head[-1:].isalnum() or head[-1:] in tuple(")]}_^'|!"):
                return True
            if not inner:
                listed = after.lstrip(" $")[:1] in tuple(",;")
                return listed or head.rstrip().endswith(("-", "\u2212", "+")) or _leads_into(head, after)
    if "*" in before[-2:] and _TIMES.search(before):
        return True
    left = before.rstrip(" \t\r\n*$\"'`")
    gap = before[len(left) :]
    if left.endswith("\\"):
        if not gap.startswith("$"):
            return True  # a new row
        left = left[:-1].rstrip()
    last, rest = left[-1:], left[:-1]
    if last.isalnum():
        return _word_leads_into(left, gap)
    if last in ("-", "\u2212", "\u2013", "+"):
        return _sign_leads_into(last, rest, gap, after)
    if last in (",", ";"):
        word = _WORD.search(rest.rstrip())
        closed = after.lstrip(" $")[:1] in tuple(")]")
        return (in_brackets or closed) and (word is None or len(word[0]) == 1 or "\\" in word[0])
    if last == ":":
        near = not gap or rest.endswith(" ")
        return near and (rest.rstrip()[-1:].isdigit() or _is_variable(rest))
    if last in (")", "]", "}"):
        return not (left.endswith(("\\)", "\\]")) or _WRAPPED_WORDS.search(left))
    if last == "=":
        return rest.endswith(("<", ">", "!", "~", "\\not"))
    if last == ">":
        return not (rest.endswith("=") or not rest.strip() or rest.endswith("\n") or _TAG.search(left))
    if last == "|":  # a table has one at the beginning of its line
        return not gap or not left[left.rfind("\n") + 1 :].lstrip().startswith("|")
    if last == "!":
        return rest[-1:].isdigit() or rest[-1:] in tuple(")]}") or _is_variable(rest)
    if not last or last.isascii():
        return last in tuple("<^/&_\\")
    return last == "\u00b7" or (unicodedata.category(last) in ("Sm", "No") and last not in "\u2248\u2261\u21d2\u2234")


def _word_leads_into(left: str, gap: str) -> bool:
    """Whether a number behind a word, a command or another number is part of an expression."""
    if (word := _WORD.search(left, max(0, len(left) - _WORD_CHARS))) is None:  # digits, 2 5
        return "\n" not in gap
    if word[0][0] == "\\":
        return word[0] not in _COMMANDS
    if len(word[0]) == 1:
        return "\n" not in gap and word[0] not in "aAI"
    return word[0].lower() in _CHANGING_BEFORE


def _sign_leads_into(sign: str, rest: str, gap: str, after: str) -> bool:
    """Whether a sign in front of a number is an operation: any but a number's own sign and a bullet."""
    if not gap:
        glued = rest[-1:].isalnum() or rest[-1:] in tuple(")]}^+-\u2212\u2013*/_\\!")
        return glued or _leads_into(rest, after)
    operand = rest.rstrip()[-1:]
    first = rest.rstrip(" \t")[-1:] in ("", "\n")  # of its line
    bullet = first and not gap.strip(" *") and sign != "+"
    return not bullet or operand.isdigit() or (operand != "" and operand in "$=+-\u2212*/([{&|)]}\\^")


def _is_variable(s: str) -> bool:
    """Whether ``s`` ends in a letter that stands alone."""
    word = _WORD.search(s)
    return word is not None and len(word[0]) == 1
