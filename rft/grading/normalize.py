"""Rewrite an answer into one notation: what is dropped or renamed here never changes what the answer states."""

import re
from functools import lru_cache

MAX_CHARS = 10_000  # a longer answer is not an answer
MAX_BRACES = 500
_ROUNDS = 6  # passes until nothing changes any more, so that a normal form is its own normal form

DOLLAR = "\u00a4"  # stands for an amount's dollar sign, so that it is never taken for a math delimiter
_CHARS = {"\u2212": "-", "\u2013": "-", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u200b": "", "\u00b0": "^\\circ"}
_CHARS |= {"\u2264": "\\le ", "\u2265": "\\ge ", "\u2260": "\\ne ", "\u221e": "\\infty ", "\u222a": "\\cup "}
_CHARS |= {"\u00d7": "\\times ", "\u00b7": "\\cdot ", "\u00f7": "\\div ", "\u221a": "\\sqrt ", "\u03c0": "\\pi "}
_CHARS |= {"\u2208": "\\in ", "\u00b1": "\\pm ", "\u2248": "\\approx ", "\u2205": "\\emptyset ", "\u03b8": "\\theta "}
_CHARS |= {"\u00bd": "\\frac{1}{2}", "\u211d": "\\mathbb{R}"}
_ODD_CHARS = str.maketrans(_CHARS)
_RADICAL = re.compile(r"\u221a ?(?:([0-9]+(?:\.[0-9]+)?)|\(([^()]*)\))")  # the sign covers a whole number or bracket
_SUPERSCRIPT = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
_DIGITS = str.maketrans("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079", "0123456789")

_RENAMED = {"dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "leq": "le", "leqslant": "le", "geq": "ge", "neq": "ne"}
_RENAMED |= {"geqslant": "ge", "varnothing": "emptyset", "lbrace": "{", "rbrace": "}", "lvert": "|", "rvert": "|"}
_RENAMED |= {"textdollar": "$", "dots": "ldots", "thinspace": "", "degree": "^\\circ"}
_SIZES = "left right big Big bigg Bigg bigl bigr Bigl Bigr displaystyle textstyle limits boldsymbol"
_RENAMED |= dict.fromkeys((_SIZES + " bf bfseries it itshape sf tt").split(), "")
_RENAMES = re.compile(r"\\(" + "|".join(sorted(_RENAMED, key=len, reverse=True)) + r")(?![A-Za-z])")
_SIGNS = re.compile(r"\\(?:lt|gt)(?![A-Za-z])|<=|>=|!=")
_SIGN = {"\\lt": "<", "\\gt": ">", "<=": "\\le ", ">=": "\\ge ", "!=": "\\ne "}

_BRACE = re.compile(r"\\.|[{}]")
_SPACES = re.compile(r"\s+")
# All patterns below run on text whose whitespace is collapsed, so " ?" stands for any: "\s*" in front of something
# that fails would make them quadratic.
_AROUND = re.compile(r" ?([-+*/=<>;:^_(){}\[\]|&%]) ?| ?\\\\ ?| ,")
_AFTER_COMMA = re.compile(r", (?![0-9]{3}(?![0-9]))|(?<![0-9]), ")  # "1, 234" is a list, "1,234" a number
_COMMAND = re.compile(r" (?=\\[A-Za-z{])|(\\[A-Za-z]+) (?![A-Za-z])")
_DELIMITER = re.compile(r"(?<!\\)\\[()\[\]]")
# "10{,}000" and "10,\! 000" are numbers also inside of a tuple; "0{,}125" has a decimal comma.
_GROUPING = re.compile(r"(?:(?<=[1-9])|(?<=[0-9]{2}))(?:\{,\}|,\\! ?)(?=[0-9]{3}(?![0-9]))")
_THIN = re.compile(r"(?<!\\)\\[!,]")
_BLANK = re.compile(r"(?<!\\)\\[;: ]|\\q?quad(?![A-Za-z])|~")
_WRAPPER = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|textnormal|mathrm|mathbf|mathit|mathsf|mathtt|bm|mbox|rm|operatorname)"
    r" ?\{([^{}]*)\}"
)
_COLOR = re.compile(r"\\(?:text)?color ?\{[^{}]{1,40}\}")
_SHORT_FRAC = re.compile(r"\\frac ?([0-9]) ?(?:([0-9])|(?=\{))")
_SHORT_DENOMINATOR = re.compile(r"(\\frac ?\{[^{}]*\}) ?([0-9])")
_SHORT_SQRT = re.compile(r"\\sqrt ?([0-9])")
_SHORT_POWER = re.compile(r"([\^_])\{([0-9A-Za-z])\}(?![0-9A-Za-z])")
_PLUS_INFINITY = re.compile(r"(^|[(\[,;])\+(?=\\infty)")
_ELLIPSIS = re.compile(r"\.[0-9]+\.\.+$")  # 0.333... is not 0.333
_WHOLE_BOX = re.compile(r"\\(?:boxed|fbox) ?\{")
_NORMAL = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?|\\frac\{[0-9]+\}\{[0-9]+\})|[A-Za-z]")  # the common answers


@lru_cache(maxsize=512)  # one answer is compared with several things, one label with the answers of its group
def normalize(answer: str) -> str:
    """Normal form of ``answer``; '' where nothing is left, it is too long or wrapped too deep.

    The usual rules (enclosing ``$``, trailing periods, text wrappers, fractions, whitespace) and notation that
    means the same: ``\\left``, thin spaces, ``\\frac12``, ``10{,}000``, outer braces, ``\\leq`` and ``<=``, a few
    characters outside of ASCII. Numbers keep their digits: `rft.grading.rational` compares values.
    """
    if len(answer) > MAX_CHARS or answer.count("{") > MAX_BRACES:
        return ""
    s = answer.replace("\\dfrac", "\\frac") if "\\dfrac" in answer else answer
    for _ in range(_ROUNDS):
        if _NORMAL.fullmatch(s):
            return s
        before, s = s, _pass(s)
        if s == before:
            return s
    return ""


def _pass(s: str) -> str:
    if not s.isascii():
        s = _rewrite_odd_chars(s)
    s = _strip_enclosing(_SPACES.sub(" ", s))
    if "\\" in s or "{" in s or "~" in s:
        s = _rewrite_latex(s)
    if "$" in s:
        s = s.replace("\\$", DOLLAR)
        s = s.replace("$", "") if s.count("$") % 2 == 0 else s.replace("$", DOLLAR)
    if "=" in s:
        s = _SIGNS.sub(lambda m: _SIGN[m[0]], s)
    if " " in s:
        s = _AROUND.sub(lambda m: m[1] or m[0].strip(), _SPACES.sub(" ", s))
        s = _COMMAND.sub(lambda m: m[1] or "", _AFTER_COMMA.sub(",", s)).strip()
    return _strip_enclosing(s)


def _rewrite_odd_chars(s: str) -> str:
    s = _SUPERSCRIPT.sub(lambda m: f"^{{{m[0].translate(_DIGITS)}}}", s)
    if "\u221a" in s:
        for _ in range(3):  # from the inner ones outwards
            s = _RADICAL.sub(lambda m: f"\\sqrt{{{m[1] or m[2]}}}", s)
    return s.translate(_ODD_CHARS)


def _strip_enclosing(s: str) -> str:
    """Remove what only wraps the whole answer: a box, outer braces, trailing periods."""
    for _ in range(4):
        before = s
        s = strip_periods(s)
        if s.endswith("}"):
            box = _WHOLE_BOX.match(s)
            start = box.end() if box else 1
            if (box or s[0] == "{") and _closes_at_end(s, start):
                s = s[start:-1]
        if s == before:
            return s
    return s


def strip_periods(s: str) -> str:
    """``s`` without blanks around it and periods behind it, but for those of a decimal that continues."""
    s = s.strip()
    return s.rstrip(".").rstrip() if s.endswith(".") and not _ELLIPSIS.search(s[-40:]) else s


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
    if s.endswith("\\\\"):  # a line break at the end
        bare = s.rstrip("\\")
        s = bare if (len(s) - len(bare)) % 2 == 0 else s
    s = _GROUPING.sub("", _DELIMITER.sub("", s)).replace("{,}", ",").replace("\\%", "%")
    s = _BLANK.sub(" ", _THIN.sub("", s))
    s = _RENAMES.sub(_rename, _COLOR.sub("", s) if "color" in s else s)
    s = _SIGNS.sub(lambda m: _SIGN[m[0]], s)
    for _ in range(3):
        s, count = _WRAPPER.subn(r"\1", s)
        if not count:
            break
    if "\\frac" in s:
        s = _SHORT_FRAC.sub(lambda m: f"\\frac{{{m[1]}}}" + (f"{{{m[2]}}}" if m[2] else ""), s)
        s = _SHORT_DENOMINATOR.sub(r"\1{\2}", s)
    s = _PLUS_INFINITY.sub(r"\1", s)
    s = s.replace("^{\\circ}", "^\\circ")
    return _SHORT_POWER.sub(r"\1\2", _SHORT_SQRT.sub(r"\\sqrt{\1}", s))


def _rename(m: re.Match) -> str:
    name = _RENAMED[m[1]]
    return "\\" + name if name and name[0] not in "|^" else name
