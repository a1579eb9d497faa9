"""Numbers as exact rationals: integers of any size, decimals, fractions, powers of ten."""

import re
from functools import lru_cache

MAX_DIGITS = 1_000  # longer non-integers are compared as text
MAX_EXPONENT = 308  # that of a double; larger powers of ten are never built
TOLERANCE_INVERSE = 10**6  # relative tolerance 1e-6, as an integer so that the comparison stays exact

_GROUPED = r"[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+"  # "0,111" is a list or a decimal comma, not 111
_INTEGER = re.compile(rf"([+-]?)({_GROUPED})(?:\.0*)?")
_DECIMAL = re.compile(rf"([+-]?)({_GROUPED})?(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{{1,3}}))?")
_FRAC = re.compile(r"([+-]?)\\frac\{([^{}]*)\}\{([^{}]*)\}")
_POWER_OF_TEN = re.compile(
    r"(?:(.*?)(?:\\times|\\cdot|\*|(?<=[0-9])x))?([+-]?)10\^(?:\{([+-]?[0-9]{1,3})\}|([0-9]{1,3}))"
)
_REPEATING = re.compile(r"([+-]?)([0-9]*)\.([0-9]*)\\(?:overline|bar|dot)\{([0-9]+)\}")
_MIXED = re.compile(r"([+-]?)([0-9]+) ?(\\frac\{[0-9]+\}\{[0-9]+\}|(?<= )[0-9]+/[0-9]+)")


def integer(s: str) -> str | None:
    """Sign and digits of an integer literal without leading zeros, so that any size compares exactly; else None."""
    if (m := _INTEGER.fullmatch(s)) is None:
        return None
    digits = m[2].replace(",", "").lstrip("0")
    return (("-" if m[1] == "-" else "") + digits) if digits else "0"


@lru_cache(maxsize=1024)
def parse_rational(s: str) -> tuple[int, int] | None:
    """Numerator and positive denominator of a decimal, ``a/b``, ``\\frac{a}{b}``, ``a\\times 10^{b}`` or
    ``0.\\overline{3}``; None where ``s`` is no number.

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
    if s.count("/") == 1:
        return _ratio(*s.split("/"))
    if (m := _REPEATING.fullmatch(s)) is not None:
        return _repeating(m)
    if "10^" in s and (m := _POWER_OF_TEN.fullmatch(s)) is not None:
        return _times_power_of_ten(m)
    return None


def mixed_number(s: str) -> tuple[int, int] | None:
    """Value of ``2\\frac{1}{2}`` or ``2 1/2`` read as a mixed number, None where ``s`` is none."""
    if len(s) > MAX_DIGITS or (m := _MIXED.fullmatch(s)) is None or (part := parse_rational(m[3])) is None:
        return None
    value = int(m[2]) * part[1] + part[0]
    return (-value if m[1] == "-" else value), part[1]


def is_rounded(s: str) -> bool:
    """Whether a number's notation rounds: a decimal may, a fraction or a period does not."""
    return "." in s and "\\" not in s.partition(".")[2]


def close(a: tuple[int, int], g: tuple[int, int], rounded: bool) -> bool:
    """Whether two rationals are equal, or, where a decimal made one of them (``rounded``), near enough.

    Near is 1e-6 of the larger one, and next to an integer also 1e-6 at most: 1000000.5 does not state 1000000. Two
    integers, and two fractions, are equal or not.
    """
    left, right = a[0] * g[1], g[0] * a[1]
    if left == right:
        return True
    whole_a, whole_g = a[0] % a[1] == 0, g[0] % g[1] == 0
    if not rounded or (whole_a and whole_g):
        return False
    distance = abs(left - right) * TOLERANCE_INVERSE
    return distance <= max(abs(left), abs(right)) and (not (whole_a or whole_g) or distance <= a[1] * g[1])


def _decimal(s: str) -> tuple[int, int] | None:
    m = _DECIMAL.fullmatch(s)
    if m is None or not (m[2] or m[3]):
        return None
    places = m[3] or ""
    exponent = int(m[4] or 0)
    if abs(exponent) > MAX_EXPONENT:
        return None
    numerator = int((m[2] or "0").replace(",", "") + places)
    numerator = -numerator if m[1] == "-" else numerator
    return _shift(numerator, 1, exponent - len(places))


def _shift(numerator: int, denominator: int, exponent: int) -> tuple[int, int]:
    return (numerator * 10**exponent, denominator) if exponent >= 0 else (numerator, denominator * 10**-exponent)


def _times_power_of_ten(m: re.Match) -> tuple[int, int] | None:
    factor = _decimal(m[1]) if m[1] is not None else (1, 1)
    exponent = int(m[3] or m[4])
    if factor is None or abs(exponent) > MAX_EXPONENT or (m[1] is not None and m[2]):
        return None
    return _shift(-factor[0] if m[2] == "-" else factor[0], factor[1], exponent)


def _repeating(m: re.Match) -> tuple[int, int]:
    """0.1\\overline{6}: digits that repeat are so many ninths."""
    sign, whole, places, period = m.groups()
    nines = 10 ** len(period) - 1
    value = int((whole or "0") + places) * nines + int(period)
    return (-value if sign == "-" else value), nines * 10 ** len(places)


def _ratio(numerator: str, denominator: str) -> tuple[int, int] | None:
    top, bottom = _decimal(numerator.strip()), _decimal(denominator.strip())
    if top is None or bottom is None or bottom[0] == 0:
        return None
    n, d = top[0] * bottom[1], top[1] * bottom[0]
    return (-n, -d) if d < 0 else (n, d)
