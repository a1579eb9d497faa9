"""Values of expressions to 100 digits, for the lenient profile. Sizes are capped before anything is computed."""

import decimal
import hashlib
from functools import lru_cache

from .expression import negated, parse, rational_of

_TRAPS = [decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow]
_CONTEXT = decimal.Context(prec=150, Emax=200, Emin=-400, traps=_TRAPS)
_LARGEST, _SMALLEST, _ZERO = decimal.Decimal("1e40"), decimal.Decimal("1e-40"), decimal.Decimal("1e-100")
_MAX_POWER = 200


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
    values = [[_value(("add", [left, negated(right)]), p) for left, right in (a, g)] for p in (0, 1, 2)]
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
    n, d = rational_of(exponent) or (0, 0)
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
