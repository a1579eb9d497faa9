"""Rewrite an answer into one notation. ``strict`` never drops a sign that carries meaning; ``lenient`` drops units."""

import re

MAX_CHARS = 10_000  # a longer answer is not an answer
_ROUNDS = 5  # passes until nothing changes any more, so that a normal form is its own normal form

_ODD_CHARS = str.maketrans({"\u2212": "-", "\u00a0": " ", "\u2009": " ", "\u202f": " "})
_BRACE = re.compile(r"\\.|[{}]")
_SPACES = re.compile(r"\s+")
# All patterns below run on text whose whitespace is collapsed, so " ?" stands for any: "\s*" in front of something
# that fails would make them quadratic.
_AROUND = re.compile(r" ?([-+*/=<>,;:^_(){}\[\]|]) ?")
_SIZING = re.compile(r"\\(?:left|right)(?![A-Za-z])|\\[!,;: ]")
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox) ?\{([^{}]*)\}")
_SHORT_FRAC = re.compile(r"\\frac ?([0-9]) ?(?:([0-9])|(?=\{))")
_SHORT_DENOMINATOR = re.compile(r"(\\frac ?\{[^{}]*\}) ?([0-9])")
_SHORT_SQRT = re.compile(r"\\sqrt ?([0-9])")
_WHOLE_BOX = re.compile(r"\\(?:boxed|fbox) ?\{")
_NORMAL = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?|\\frac\{[0-9]+\}\{[0-9]+\}|[A-Za-z])")  # the common answers
_ENCLOSING = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))

_PERCENT = re.compile(r"\\?%| ?\b(?:percent|pct)\b")
_DEGREES = re.compile(r"\^ ?(?:\\circ|\{ ?\\circ ?\})|\u00b0| ?\bdegrees?\b")
_UNITS = re.compile(r"(?<=[0-9}]) ?\\(?:text|textrm|mathrm|mbox) ?\{[^{}]*\}(?: ?\^ ?\{?[0-9]\}?)?$")
_LEFT_SIDE = re.compile(r"[A-Za-z] ?(?:=|\\approx(?![A-Za-z])|\\in(?![A-Za-z])) ?")
_CHOICE = re.compile(r"\(([A-Z]|[0-9]+)\)")
_MATRIX = re.compile(r"\{[bvB]matrix\}")


def normalize(answer: str, lenient: bool = False) -> str:
    """Normal form of ``answer``; '' where nothing is left, it is too long or wrapped too deep.

    Strict follows the reference (enclosing ``$``, trailing periods, text wrappers, fractions, whitespace) and
    rewrites notation that means the same (``\\left``, thin spaces, ``\\frac12``, ``10{,}000``, outer braces).
    Lenient also drops what an answer may be decorated with: percent, degree and dollar signs, ``\\text{ units}``
    behind a number, ``x =``, the parentheses of a choice. Numbers are left to `rft.grading.compare`.
    """
    if len(answer) > MAX_CHARS:
        return ""
    s = answer if answer.isascii() else answer.translate(_ODD_CHARS)
    for _ in range(_ROUNDS):
        if "frac" in s:
            s = s.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\cfrac", "\\frac")
        if _NORMAL.fullmatch(s):
            return s
        before, s = s, _pass(s, lenient)
        if s == before:
            return s
    return ""


def _pass(s: str, lenient: bool) -> str:
    s = _strip_enclosing(_SPACES.sub(" ", s))
    if lenient:
        s = _drop_decoration(s)
    if "\\" in s or "{" in s:
        s = _rewrite_latex(s)
    if " " in s:
        s = _AROUND.sub(r"\1", _SPACES.sub(" ", s)).strip()
    if lenient and (choice := _CHOICE.fullmatch(s)):
        s = choice[1]
    return s


def _strip_enclosing(s: str) -> str:
    """Remove what only wraps the whole answer: math delimiters, a box, outer braces, trailing periods."""
    for _ in range(4):
        before = s
        s = s.strip().rstrip(".").rstrip()
        for left, right in _ENCLOSING:
            if len(s) >= len(left) + len(right) and s.startswith(left) and s.endswith(right):
                inner = s[len(left) : -len(right)]
                s = s if left in inner else inner
                break
        if s.endswith("}"):
            box = _WHOLE_BOX.match(s)
            start = box.end() if box else 1
            if (box or s[0] == "{") and _closes_at_end(s, start):
                s = s[start:-1]
        if s == before:
            return s
    return s


def _closes_at_end(s: str, start: int) -> bool:
    """Whether the brace opened just before ``start`` is closed by the last character of ``s``."""
    depth = 1
    for m in _BRACE.finditer(s, start):
        if m[0] == "{":
            depth += 1
        elif m[0] == "}":
            depth -= 1
            if depth == 0:
                return m.end() == len(s)
    return False


def _rewrite_latex(s: str) -> str:
    s = s.replace("{,}", ",").replace("\\$", "$").replace("\\%", "%").replace("\\quad", " ").replace("~", " ")
    s = _SIZING.sub("", s)
    for _ in range(3):
        s, count = _WRAPPER.subn(r"\1", s)
        if not count:
            break
    if "\\frac" in s:
        s = _SHORT_FRAC.sub(lambda m: f"\\frac{{{m[1]}}}" + (f"{{{m[2]}}}" if m[2] else ""), s)
        s = _SHORT_DENOMINATOR.sub(r"\1{\2}", s)
    return _strip_enclosing(_SHORT_SQRT.sub(r"\\sqrt{\1}", s))


def _drop_decoration(s: str) -> str:
    s = _DEGREES.sub("", _PERCENT.sub("", s)).strip()
    s = _UNITS.sub("", s.removeprefix("\\$").removeprefix("$")).strip()
    if s.count("=") + s.count("\\approx") + s.count("\\in") == 1 and (left := _LEFT_SIDE.match(s)):
        s = s[left.end() :]
    return _MATRIX.sub("{pmatrix}", s)
