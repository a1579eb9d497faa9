"""Small algebra for answers that are no plain numbers: one form for one expression, and values to 100 digits.

`canonical` knows notation and order only (``\\frac{\\sqrt3}{2}`` is ``\\sqrt{3}/2``, ``1+x`` is ``x+1``) and computes
nothing: whoever restates the problem has not answered it. `same_value` computes, for the lenient profile. Sizes are
capped before anything is computed; nothing is ever evaluated as code.
"""

import decimal
import hashlib
import re
from functools import lru_cache
from math import gcd

MAX_CHARS = 300
MAX_DEPTH = 12
_TOKEN = re.compile(
    r"\\[A-Za-z]+(?:_(?:[0-9A-Za-z]|\{[0-9A-Za-z]{1,9}\}))?|[0-9]{1,30}(?:\.[0-9]{1,30})?|\.[0-9]{1,30}"
    r"|[A-Za-z](?:_(?:[0-9A-Za-z]|\{[0-9A-Za-z]{1,9}\}))?|[-+*/^(){}\[\]]"
)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{4}")
_WORD_NEAR_SPACE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2}")
_LETTERS = "alpha beta gamma delta epsilon theta lambda mu nu xi pi rho sigma tau phi chi psi omega"
_NAMES = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log lg exp"
_GREEK = frozenset(_LETTERS.split())
_FUNCTIONS = frozenset(f"\\{name}" for name in _NAMES.split())
_TIMES = frozenset(("*", "\\cdot", "\\times"))
_OVER = frozenset(("/", "\\div"))
_PAIRS = {"(": ")", "{": "}", "[": "]"}
_MINUS_ONE, _HALF = ("num", -1, 1), ("num", 1, 2)

_TRAPS = [decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow]
_CONTEXT = decimal.Context(prec=150, Emax=200, Emin=-400, traps=_TRAPS)
_LARGEST, _SMALLEST, _ZERO = decimal.Decimal("1e40"), decimal.Decimal("1e-40"), decimal.Decimal("1e-100")
_MAX_POWER = 200


class _Unreadable(Exception):
    """The text is beyond this grammar, or has two readings; it is then compared as text."""


@lru_cache(maxsize=1024)
def parse(s: str) -> tuple | None:
    """Tree of a normal form, None where it is none of: numbers, letters, + - * / ^, fractions and roots.

    Nodes are ``("num", n, d)``, ``("sym", name)``, ``("add", children)``, ``("mul", children)``,
    ``("pow", base, exponent)``. A function of something is a letter of its
    own. Words, relations and lists are not read, nor what has two readings
    (``1/2x``, ``2\\frac{1}{2}``).
    """
    if (
        len(s) > MAX_CHARS
        or (len(s) > 1 and s.isalpha())
        or _WORD.search(s)
        or (" " in s and _WORD_NEAR_SPACE.search(s))
    ):
        return None
    tokens, end = [], 0
    for m in _TOKEN.finditer(s):
        if s[end : m.start()].strip(" "):
            return None
        end = m.end()
        tokens.append(m[0])
    if s[end:].strip(" "):
        return None
    try:
        tree, at = _sum([*tokens, ""], 0, 0)
    except _Unreadable:
        return None
    return tree if at == len(tokens) else None


def _sum(t: list[str], i: int, depth: int) -> tuple[tuple, int]:
    if depth > MAX_DEPTH:
        raise _Unreadable
    terms, first = [], True
    while first or t[i] in ("+", "-"):
        negative = t[i] == "-"
        term, i = _product(t, i + (t[i] in ("+", "-")), depth)
        terms.append(_negated(term) if negative else term)
        first = False
    return (terms[0] if len(terms) == 1 else ("add", terms)), i


def _product(t: list[str], i: int, depth: int) -> tuple[tuple, int]:
    factor, i = _power(t, i, depth)
    factors, divided = [factor], False
    while True:
        if t[i] in _TIMES or t[i] in _OVER:
            divided = t[i] in _OVER
            factor, i = _power(t, i + 1, depth)
            factors.append(("pow", factor, _MINUS_ONE) if divided else factor)
        elif t[i] and (t[i][0].isalnum() or t[i][0] in "\\({."):
            mixed = t[i] == "\\frac" and factors[-1][0] == "num"
            if divided or t[i][0] in ".0123456789":
                raise _Unreadable
            factor, i = _power(t, i, depth)
            if mixed and _rational(factor):
                raise _Unreadable
            factors.append(factor)
        else:
            return (factors[0] if len(factors) == 1 else ("mul", factors)), i


def _power(t: list[str], i: int, depth: int) -> tuple[tuple, int]:
    base, i = _atom(t, i, depth)
    if t[i] != "^":
        return base, i
    negative = t[i + 1] == "-"
    exponent, i = _atom(t, i + 1 + negative, depth)
    if t[i] == "^":
        raise _Unreadable
    return ("pow", base, _negated(exponent) if negative else exponent), i


def _atom(t: list[str], i: int, depth: int) -> tuple[tuple, int]:
    token = t[i]
    if token[:1] in tuple(".0123456789"):
        whole, _, places = token.partition(".")
        n, d = int((whole or "0") + places), 10 ** len(places)
        return ("num", n // gcd(n, d), d // gcd(n, d)), i + 1
    if token[:1].isalpha():
        return ("sym", token.replace("{", "").replace("}", "")), i + 1
    if token in ("(", "{"):
        return _group(t, i, depth)
    if token == "\\frac":
        top, i = _argument(t, i + 1, depth)
        bottom, i = _argument(t, i, depth)
        return ("mul", [top, ("pow", bottom, _MINUS_ONE)]), i
    if token == "\\sqrt":
        exponent = _HALF
        if t[i + 1] == "[":
            index, i = _group(t, i + 1, depth)
            if index[0] != "num" or index[2] != 1 or not 2 <= index[1] <= 20:
                raise _Unreadable
            exponent, i = ("num", 1, index[1]), i - 1
        base, i = _argument(t, i + 1, depth)
        return ("pow", base, exponent), i
    name, _, index = token.partition("_")
    if name[1:] in _GREEK:
        return ("sym", token.replace("{", "").replace("}", "")), i + 1
    if name in _FUNCTIONS:
        return _function(f"{name}_{index.strip('{}')}", t, i + 1, depth)
    raise _Unreadable


def _function(name: str, t: list[str], i: int, depth: int) -> tuple[tuple, int]:
    """A function's value as a letter of its own, named by function and argument: nothing is computed of it."""
    power = None
    if t[i] == "^":
        power, i = _atom(t, i + 1, depth)
    argument, i = _atom(t, i, depth)
    ends = t[i] in _TIMES or t[i] in _OVER or t[i] in _FUNCTIONS
    if t[i] == "^" or ((t[i][:1].isalnum() or t[i][:1] in tuple("({\\")) and not ends):
        raise _Unreadable  # \sin 2x
    value = ("sym", f"{name}[{''.join(_signed(argument))}]")
    return (("pow", value, power) if power else value), i


def _group(t: list[str], i: int, depth: int) -> tuple[tuple, int]:
    tree, end = _sum(t, i + 1, depth + 1)
    if t[end] != _PAIRS[t[i]]:
        raise _Unreadable
    return tree, end + 1


def _argument(t: list[str], i: int, depth: int) -> tuple[tuple, int]:
    """What a command takes: a group in braces, or one character."""
    if t[i] == "{":
        return _group(t, i, depth)
    if len(t[i]) != 1 or not t[i].isalnum():
        raise _Unreadable
    return _atom(t, i, depth)


def _negated(tree: tuple) -> tuple:
    return ("num", -tree[1], tree[2]) if tree[0] == "num" else ("mul", [_MINUS_ONE, tree])


def _rational(tree: tuple) -> tuple[int, int] | None:
    """Numerator and denominator of a number or a quotient of two, None for any other tree."""
    if tree[0] == "num":
        return tree[1], tree[2]
    if tree[0] == "mul" and len(tree[1]) == 2 and (top := _rational(tree[1][0])):
        other = tree[1][1]
        inverse = other[0] == "pow" and other[2] == _MINUS_ONE
        bottom = _rational(other[1] if inverse else other)
        if bottom and inverse and bottom[0] > 0:
            return top[0] * bottom[1], top[1] * bottom[0]
        if bottom and top == (-1, 1):
            return -bottom[0], bottom[1]
    return None


@lru_cache(maxsize=1024)
def canonical(s: str) -> str | None:
    """The same text for two normal forms that differ in notation or in the order of terms and factors only."""
    tree = parse(s)
    return None if tree is None else "{}{}".format(*_signed(tree))


def _signed(tree: tuple) -> tuple[str, str]:
    sign, keys = _factors(tree, inverse=False)
    return ("-" if sign < 0 else "+"), "*".join(sorted(keys)) or "1"


def _factors(tree: tuple, inverse: bool) -> tuple[int, list[str]]:
    """Sign and factors of a product; a divisor is marked with a slash."""
    kind, over = tree[0], "/" if inverse else ""
    if kind == "num":
        n, d = (tree[2], tree[1]) if inverse else (tree[1], tree[2])
        keys = [str(abs(n))] if abs(n) != 1 else []
        return (-1 if tree[1] < 0 else 1), keys + ([f"/{abs(d)}"] if abs(d) != 1 else [])
    if kind == "sym":
        return 1, [over + tree[1]]
    if kind == "mul":
        parts = [_factors(child, inverse) for child in tree[1]]
        sign = -1 if sum(s < 0 for s, _ in parts) % 2 else 1
        return sign, [key for _, keys in parts for key in keys]
    if kind == "pow":
        exponent_sign, exponent = _signed(tree[2])
        if exponent_sign == "-":
            inverse, over = not inverse, "" if inverse else "/"
        if exponent == "1":
            return _factors(tree[1], inverse)
        return 1, [f"{over}({''.join(_signed(tree[1]))})^({exponent})"]
    terms = sorted((key, sign) for sign, key in map(_signed, tree[1]))
    flip = terms[0][1] == "-"
    return (-1 if flip else 1), [over + "(" + "".join(("-" if (s == "-") != flip else "+") + k for k, s in terms) + ")"]


def symbols(tree: tuple) -> set[str]:
    """Names of the letters in a tree."""
    if tree[0] == "sym":
        return {tree[1]}
    children = tree[1] if tree[0] in ("add", "mul") else tree[1:] if tree[0] == "pow" else ()
    return set().union(*map(symbols, children))


def same_value(a: str, g: str) -> bool:
    """Whether two normal forms are equal at fixed points to 100 digits; letters stand for real numbers.

    False where either cannot be read or computed within 1e40.
    """
    if (tree_a := parse(a)) is None or (tree_g := parse(g)) is None:
        return False
    return _agree(tree_a, tree_g, 0) and (
        not symbols(tree_a) | symbols(tree_g) or _agree(tree_a, tree_g, 1) or _agree_where_positive(tree_a, tree_g)
    )


def _agree(a: tuple, g: tuple, point: int) -> bool:
    x = _value(a, point)
    y = None if x is None else _value(g, point)
    return x is not None and y is not None and near(x, y)


def _agree_where_positive(a: tuple, g: tuple) -> bool:
    """Roots of letters exist for positive letters only."""
    return _value(a, 1) is None and _value(g, 1) is None and _agree(a, g, 2)


def near(x: decimal.Decimal, y: decimal.Decimal) -> bool:
    """Equal to 100 digits."""
    return abs(_CONTEXT.subtract(x, y)) <= _ZERO * max(abs(x), abs(y), decimal.Decimal(1))


def proportional(a: tuple[tuple, tuple], g: tuple[tuple, tuple]) -> bool:
    """Whether two equations, each a pair of sides, have differences of their sides that are multiples of each other."""
    values = [[_value(("add", [left, _negated(right)]), p) for left, right in (a, g)] for p in (0, 1, 2)]
    if not all(x and y for x, y in values):  # zero, or beyond what is computed
        return False
    x0, y0 = values[0]
    return all(near(_CONTEXT.multiply(x, y0), _CONTEXT.multiply(y, x0)) for x, y in values[1:])


def _value(tree: tuple, point: int) -> decimal.Decimal | None:
    try:
        return _compute(tree, point)
    except decimal.DecimalException:
        return None


def _compute(tree: tuple, point: int) -> decimal.Decimal:
    kind = tree[0]
    if kind == "num":
        value = _CONTEXT.divide(decimal.Decimal(tree[1]), decimal.Decimal(tree[2]))
    elif kind == "sym":
        value = _letter(tree[1], point)
    elif kind == "pow":
        value = _raise(_compute(tree[1], point), tree[2], point)
    else:
        combine = _CONTEXT.add if kind == "add" else _CONTEXT.multiply
        value = _compute(tree[1][0], point)
        for child in tree[1][1:]:
            value = combine(value, _compute(child, point))
    if abs(value) < _ZERO:
        return decimal.Decimal(0)
    if not _SMALLEST <= abs(value) <= _LARGEST:
        raise decimal.Overflow
    return value


def _raise(base: decimal.Decimal, exponent: tuple, point: int) -> decimal.Decimal:
    n, d = _rational(exponent) or (0, 0)
    if d == 1 or (d % 2 and base < 0):
        if abs(n) > _MAX_POWER:
            raise decimal.Overflow
        if d > 1:
            root = _CONTEXT.power(-base, _CONTEXT.divide(decimal.Decimal(1), decimal.Decimal(d)))
            return _CONTEXT.power(-root, n)
        return _CONTEXT.power(base, n)
    if d == 2 and abs(n) <= _MAX_POWER:
        return _CONTEXT.power(_CONTEXT.sqrt(base), n)
    power = _compute(exponent, point)
    if base <= 0 or abs(power) > _MAX_POWER:
        raise decimal.InvalidOperation
    return _CONTEXT.power(base, power)


@lru_cache(maxsize=1024)
def _letter(name: str, point: int) -> decimal.Decimal:
    """A fixed number between 1 and 2 for a letter, negative at point 1 unless it is e or pi."""
    digest = hashlib.sha512(f"{name} {0 if name in ('e', chr(92) + 'pi') else point}".encode()).digest()
    value = 1 + _CONTEXT.divide(decimal.Decimal(int.from_bytes(digest)), decimal.Decimal(2**512))
    return -value if point == 1 and name not in ("e", "\\pi") else value
