"""What an answer may be decorated with, for the lenient profile: a left side, a unit, a choice."""

import re
from typing import NamedTuple

from .normalize import DOLLAR, normalize, strip_periods

_NAME = r"(?:\\?[A-Za-z]+(?:_(?:[0-9A-Za-z]|\{[0-9A-Za-z, ]{1,9}\}))?'{0,2}(?:\([A-Za-z, ]{1,9}\))?)"
_LEFT_SIDE = re.compile(
    rf"([fghpqFGHPQ]\([0-9]{{1,9}}\)|{_NAME}(?::{_NAME})?|\({_NAME}(?:,{_NAME}){{1,7}}\)"
    r"|\|[A-Za-z]{1,9}\||\\angle ?[A-Z]{1,3}) ?"
    r"(?:=|\\approx(?![A-Za-z])|\\in(?![A-Za-z])) ?"
)
_NOT_NAMES = ("\\frac", "\\sqrt", "\\text", "\\pm", "\\mathbb")
_WRAPPED_UNIT = re.compile(
    r"(?:(?<=[0-9)}.$])|(?<=\\pi)) ?"
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mbox|operatorname|rm) ?\{([^{}]{1,40})\}"
    r" ?(?:\^ ?\{?([0-9])\}?)? ?\$?\.?$"
)
_PLAIN_UNIT = re.compile(r"(?<=[0-9)}.$]) ?((?:[A-Za-z]{2,20}[./]? ?){1,4})(?:\^\{?([0-9])\}?)?\.?$")
_PERCENT = re.compile(r" ?(?:\\?%|\b(?:percent|percentage|pct)\b)\$?\.?$")
_DEGREES = re.compile(r" ?(?:\^ ?(?:\\circ|\{ ?\\circ ?\})|\\degree|\u00b0|\bdegrees?\b)\$?\.?$")
_CHOICE = re.compile(r"\(?([A-Z])\)(?:[ :.0-9A-Za-z\\](?!.{0,200}[A-Z]\)).{0,200})?", re.DOTALL)
_SPACED = re.compile(r"-?[1-9][0-9]{0,2}(?: [0-9]{3})+")
_THIN = re.compile(r"(?<!\\)\\[,;: ]|~|\s")
# These change the number before them, or the question.
_CHANGING = """
is are was were and or to if when where for with without not no mod modulo base more less fewer over under than of
from by plus minus times divided multiplied squared cubed choose remainder below above before after ago short left
negative positive pi tau phi sqrt root sin cos tan log ln exp inf infinity nan true false none least most about am pm
once twice thrice double triple binary ternary octal decimal hexadecimal repeating recurring repeated reciprocal
imaginary one two three four five six seven eight nine eleven twelve twenty thirty forty fifty sixty seventy eighty
ninety mil bn mn halves
"""
# These too, and so do their plurals.
_SCALES = """
ten hundred thousand million billion trillion quadrillion quintillion myriad lakh lac crore dozen score gross pair
couple trio half quarter third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth sixteenth twentieth
hundredth thousandth millionth billionth factorial
"""
SCALES = frozenset(_SCALES.split()) | {f"{word}s" for word in _SCALES.split()}
_NO_UNITS = SCALES.union(_CHANGING.split())
# Two or three letters behind a number are a product, unless they are one of these.
_SHORT = """
cm mm km nm dm kg mg ml dl kl cc ft in yd yds mi hr hrs min mins sec secs ms day lb lbs oz pt qt gal mph kph rpm
sq cu deg rad per usd eur gbp hz khz mhz kwh kw mol
"""
_SHORT_UNITS = frozenset(_SHORT.split())
_ALIASES = {"centimeter": "cm", "centimetre": "cm", "meter": "m", "metre": "m", "kilometer": "km", "kilometre": "km"}
_ALIASES |= {"millimeter": "mm", "inche": "inch", "in": "inch", "feet": "foot", "ft": "foot", "hour": "h", "hr": "h"}
_ALIASES |= {"minute": "min", "second": "s", "sec": "s", "gram": "g", "kilogram": "kg", "liter": "l", "litre": "l"}
_ALIASES |= {"buck": "dollar", "usd": "dollar", "sq": "square", "deg": "degree", "yd": "yard", "mile": "mi"}


class Stated(NamedTuple):
    """An answer without its decoration: ``core`` is a normal form, ``left`` and ``unit`` are '' where there is none."""

    left: str
    core: str
    unit: str


def undecorate(answer: str) -> Stated:
    """Split ``x = 5\\text{ cm}`` into left side, core and unit. Words that change a number are no unit."""
    s = normalize_ends(answer)
    left = ""
    if (
        s.count("=") + s.count("\\approx") + s.count("\\in ") + s.count("\\in[") + s.count("\\in(") == 1
        and (m := _LEFT_SIDE.match(s))
        and not m[1].startswith(_NOT_NAMES)
    ):
        left, s = normalize(m[1]), s[m.end() :]
    s, unit = _take_unit(s)
    core = normalize(s)
    if _SPACED.fullmatch(core):
        core = core.replace(" ", "")
    if core.startswith(DOLLAR) and not unit:
        core, unit = core[1:].lstrip(), "dollar"
    return Stated(left, core, unit)


def normalize_ends(answer: str) -> str:
    """``answer`` stripped of what wraps it, its words still in their wrappers; '' where it is too long."""
    if not normalize(answer):
        return ""
    s = re.sub(" +", " ", _THIN.sub(" ", answer).replace("$$", "$"))
    for _ in range(3):
        s = strip_periods(s)
        if s.startswith("\\boxed") and s.endswith("}"):
            s = s[s.find("{") + 1 : -1]
        if len(s) > 2 and s[0] == s[-1] == "$" and s[-2] != "\\" and "$" not in s[1:-1].replace("\\$", ""):
            s = s[1:-1]
    return s


def _take_unit(s: str) -> tuple[str, str]:
    if m := _PERCENT.search(s[-20:]):
        return s[: len(s) - len(m[0])], "%"
    if m := _DEGREES.search(s[-20:]):
        return s[: len(s) - len(m[0])], "degree"
    tail = s[-120:]
    for pattern in (_WRAPPED_UNIT, _PLAIN_UNIT):
        if (m := pattern.search(tail)) is None or (pattern is _PLAIN_UNIT and not _is_plain_unit(m[1])):
            continue
        if unit := _unit(m[1], m[2]):
            return s[: len(s) - len(tail) + m.start()], unit
    return s, ""


def _is_plain_unit(words: str) -> bool:
    """Whether words that are not marked as text can be a unit."""
    return all(len(word) > 3 or word in _SHORT_UNITS for word in re.findall("[a-z]+", words.lower()))


def _unit(words: str, power: str | None) -> str:
    """One spelling of a unit, '' where the words are none."""
    found = re.findall(r"[a-z]+", words.lower())
    if not found or re.search(r"[0-9()=<>\\]", words) or not _NO_UNITS.isdisjoint(found):
        return ""
    singular = [word if len(word) < 4 or word.endswith("ss") else word.removesuffix("s") for word in found]
    named = [_ALIASES.get(word, word) for word in singular]
    for word, exponent in (("square", "2"), ("cubic", "3")):
        if named[0] == word and len(named) == 2:
            named, power = named[1:], exponent
    return " ".join(named) + (power or "")


def is_name(s: str) -> bool:
    """Whether ``s`` is a variable or a function of one: ``x``, ``a_1``, ``f(x)``, ``|z|`` is none."""
    return bool(re.fullmatch(_NAME, s)) and not s.startswith(_NOT_NAMES)


def is_choice(letter: str, core: str) -> bool:
    """Whether ``core`` is ``(A)``, ``A)`` or ``(A) 42`` for the letter ``A``."""
    return len(letter) == 1 and (m := _CHOICE.fullmatch(core)) is not None and m[1] == letter
