"""The strict profile: two normal forms state the same answer, in the same or another notation."""

from collections.abc import Callable

from . import rational
from .expression import canonical
from .structure import Parts, relation, take_apart

MAX_DEPTH = 8  # nesting of tuples that is compared element by element
_MAX_UNORDERED = (24, 6)  # elements of a set, and of a set within it, that are matched in any order


def same(a: str, g: str, depth: int = 0) -> bool:
    """Whether normal form ``a`` states what ``g`` states.

    Integers compare exactly at any size, other numbers as exact rationals (`rft.grading.rational.close`). Lists,
    tuples, intervals and matrices compare element by element under equal brackets, sets and unions in any order.
    Relations compare side by side, ``5\\ge x`` as ``x\\le 5``. All else compares as an expression up to notation and
    order, or as text, where case matters.
    """
    if a == g:
        return bool(a)
    if not a or not g or depth > MAX_DEPTH:
        return False
    if (verdict := same_number(a, g)) is not None:
        return verdict
    parts_a, parts_g = take_apart(a), take_apart(g)
    if parts_a or parts_g:
        return bool(parts_a and parts_g and parts_a.kind == parts_g.kind) and same_items(
            parts_a, parts_g, lambda x, y: same(x, y, depth + 1), depth
        )
    relation_a, relation_g = relation(a), relation(g)
    if relation_a or relation_g:
        return bool(relation_a and relation_g) and _same_relation(relation_a, relation_g, depth)
    form = canonical(g)
    return form is not None and canonical(a) == form


def same_number(a: str, g: str) -> bool | None:
    """Whether two number literals have the same value; None where one of them is no number literal."""
    integer_a, integer_g = rational.integer(a), rational.integer(g)
    if integer_a is not None and integer_g is not None:
        return integer_a == integer_g
    value_g = rational.parse_rational(g)
    value_a = rational.parse_rational(a) if value_g is not None else None
    if value_a is None or value_g is None:
        return None
    return rational.close(value_a, value_g, rounded=rational.is_rounded(a) or rational.is_rounded(g))


def same_items(a: Parts, g: Parts, equal: Callable[[str, str], bool], depth: int) -> bool:
    """Whether two lists of elements match, one to one; in any order where one of them has none.

    A set too large to try every pair compares sorted as text.
    """
    if len(a.items) != len(g.items) or not all(a.items) or not all(g.items):
        return False
    if a.ordered and g.ordered:
        return all(equal(x, y) for x, y in zip(a.items, g.items, strict=True))
    if depth >= len(_MAX_UNORDERED) or len(g.items) > _MAX_UNORDERED[depth]:
        return sorted(a.items) == sorted(g.items)
    left = list(a.items)
    for y in g.items:
        match = next((i for i, x in enumerate(left) if equal(x, y)), None)
        if match is None:
            return False
        del left[match]
    return True


def _same_relation(a: tuple[list[str], list[str]], g: tuple[list[str], list[str]], depth: int) -> bool:
    (sides_a, signs_a), (sides_g, signs_g) = a, g
    if signs_a != signs_g:
        return False
    turned = [sides_a, sides_a[::-1]] if signs_a in (["="], ["\\ne"]) else [sides_a]
    return any(all(same(x, y, depth + 1) for x, y in zip(sides, sides_g, strict=True)) for sides in turned)
