"""Small algebra for answers that are no plain numbers: one form for one expression.

`canonical` knows notation and order only (``\\frac{\\sqrt3}{2}`` is ``\\sqrt{3}/2``, ``1+x`` is ``x+1``) and computes
nothing: whoever restates the problem has not answered it. `rft.grading.value` computes, for the lenient profile.
"""

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


class _Unreadable(Exception):
    """The text is beyond this grammar, or has two readings; it is then compared as text."""


@lru_cache(maxsize=1024)
def parse(s: str) -> tuple | None:
    """Tree of a normal form, None where it is none of: numbers, letters, + - * / ^, fractions and roots.

    Nodes are ``("num", n, d)``, ``("sym", name)``, ``("add", children)``, ``("mul", children)``,
    ``("pow", base, exponent)``. A function of something is a letter of its own. Words, relations and lists are not
    read, nor what has two readings (``1/2x``, ``2\\frac{1}{2}``).
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
        terms.append(negated(term) if negative else term)
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
            if mixed and rational_of(factor):
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
    return ("pow", base, negated(exponent) if negative else exponent), i


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


def negated(tree: tuple) -> tuple:
    return ("num", -tree[1], tree[2]) if tree[0] == "num" else ("mul", [_MINUS_ONE, tree])


def rational_of(tree: tuple) -> tuple[int, int] | None:
    """Numerator and denominator of a number or a quotient of two, None for any other tree."""
    if tree[0] == "num":
        return tree[1], tree[2]
    if tree[0] == "mul" and len(tree[1]) == 2 and (top := rational_of(tree[1][0])):
        other = tree[1][1]
        inverse = other[0] == "pow" and other[2] == _MINUS_ONE
        bottom = rational_of(other[1] if inverse else other)
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
