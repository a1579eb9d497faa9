"""Compare two answers: as text, as exact numbers, or element by element."""

import re
from functools import lru_cache

from .normalize import normalize

MAX_DIGITS = 1_000  # longer non-integers are compared as text
MAX_EXPONENT = 308  # that of a double; larger powers of ten are never built
MAX_DEPTH = 8  # nesting of tuples that is compared element by element
TOLERANCE_INVERSE = 10**6  # relative tolerance 1e-6, as an integer so that the comparison stays exact

_GROUPED = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+"
_INTEGER = re.compile(rf"([+-]?)({_GROUPED})(?:\.0*)?")
_DECIMAL = re.compile(rf"([+-]?)({_GROUPED})?(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{{1,3}}))?")
_FRAC = re.compile(r"([+-]?)\\frac\{([^{}]*)\}\{([^{}]*)\}")
_MIXED = re.compile(r"([+-]?)([0-9]+) ?(\\frac\{[0-9]+\}\{[0-9]+\}|(?<= )[0-9]+/[0-9]+)")
_PLAIN = re.compile(r"[-+0-9.,/]*|-?\\[dtc]?frac\{[0-9]+\}\{[0-9]+\}|[A-Za-z]")
_BRACKETS = (("\\{", "\\}"), ("(", ")"), ("(", "]"), ("[", ")"), ("[", "]"))


def equal(answer: str, gold: str, lenient: bool = False) -> bool:
    """Whether ``answer`` states the same value as ``gold``.

    Integers compare exactly at any size. Other numbers compare as exact rationals within 1e-6 of the larger one. Tuples
    and intervals compare element by element, in order, under equal brackets. All else compares as normalised text,
    where case matters. ``lenient`` is the looser profile of `rft.grading.normalize` and knows mixed numbers.
    """
    if lenient and _PLAIN.fullmatch(answer) and _PLAIN.fullmatch(gold):
        lenient = False  # nothing to drop
    a, g = normalize(answer, lenient), _normalize_gold(gold, lenient)
    return bool(a) and bool(g) and _equal(a, g, lenient, 0)


_normalize_gold = lru_cache(maxsize=4096)(normalize)  # a label comes back for every sample of its group


def _equal(a: str, g: str, lenient: bool, depth: int) -> bool:
    if a == g:
        return True
    integer_a, integer_g = _integer(a), _integer(g)
    if integer_a is not None and integer_g is not None:
        return integer_a == integer_g
    value_g = parse_rational(g, lenient)
    if value_g is not None:
        value_a = parse_rational(a, lenient)
        return value_a is not None and _close(value_a, value_g)
    if depth == MAX_DEPTH:
        return False
    brackets_a, items_a = _elements(a)
    brackets_g, items_g = _elements(g)
    if brackets_a != brackets_g or len(items_a) != len(items_g) or len(items_g) < 2:
        return False
    return all(x and y and _equal(x, y, lenient, depth + 1) for x, y in zip(items_a, items_g, strict=True))


def _integer(s: str) -> str | None:
    """Sign and digits of an integer literal without leading zeros, so that any size compares exactly; else None."""
    if (m := _INTEGER.fullmatch(s)) is None:
        return None
    digits = m[2].replace(",", "").lstrip("0")
    return (("-" if m[1] == "-" else "") + digits) if digits else "0"


def parse_rational(s: str, lenient: bool = False) -> tuple[int, int] | None:
    """Numerator and positive denominator of a decimal, ``a/b`` or ``\\frac{a}{b}``; None where ``s`` is no number.

    Not reduced. Sizes are checked before any number is built: at most `MAX_DIGITS` characters and exponents up to
    `MAX_EXPONENT`. Only ASCII digits count.
    """
    if len(s) > MAX_DIGITS:
        return None
    if (value := _decimal(s)) is not None:
        return value
    if (m := _FRAC.fullmatch(s)) is not None:
        value = _ratio(m[2], m[3])
        return (-value[0], value[1]) if value and m[1] == "-" else value
    if s.count("/") == 1 and (value := _ratio(*s.split("/"))) is not None:
        return value
    if lenient and (m := _MIXED.fullmatch(s)) is not None and (part := parse_rational(m[3])) is not None:
        value = int(m[2]) * part[1] + part[0]
        return (-value if m[1] == "-" else value), part[1]
    return None


def _decimal(s: str) -> tuple[int, int] | None:
    m = _DECIMAL.fullmatch(s)
    if m is None or not (m[2] or m[3]):
        return None
    places = m[3] or ""
    exponent = int(m[4] or 0)
    if abs(exponent) > MAX_EXPONENT:
        return None
    numerator = int((m[2] or "0").replace(",", "") + places)
    shift = exponent - len(places)
    numerator = -numerator if m[1] == "-" else numerator
    return (numerator * 10**shift, 1) if shift >= 0 else (numerator, 10**-shift)


def _ratio(numerator: str, denominator: str) -> tuple[int, int] | None:
    top, bottom = _decimal(numerator.strip()), _decimal(denominator.strip())
    if top is None or bottom is None or bottom[0] == 0:
        return None
    n, d = top[0] * bottom[1], top[1] * bottom[0]
    return (-n, -d) if d < 0 else (n, d)


def _close(a: tuple[int, int], g: tuple[int, int]) -> bool:
    left, right = a[0] * g[1], g[0] * a[1]
    if left == right:
        return True
    if a[0] % a[1] == 0 and g[0] % g[1] == 0:  # two integers, however written
        return False
    return abs(left - right) * TOLERANCE_INVERSE <= max(abs(left), abs(right))


def _elements(s: str) -> tuple[tuple[str, str], list[str]]:
    """Outer brackets and the parts between top-level commas: ``(1,2]`` gives ``('(', ']'), ['1', '2']``."""
    for left, right in _BRACKETS:
        if len(s) > len(left) + len(right) and s.startswith(left) and s.endswith(right):
            parts = _split_commas(s[len(left) : -len(right)])
            if parts is not None:
                return (left, right), parts
    return ("", ""), _split_commas(s) or [s]


def _split_commas(s: str) -> list[str] | None:
    """``s`` split at commas outside of brackets, None where a bracket closes that ``s`` never opened."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(s):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth < 0:
                return None
        elif char == "," and depth == 0:
            parts.append(s[start:i])
            start = i + 1
    return [*parts, s[start:]]
