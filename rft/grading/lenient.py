"""The lenient profile: the same value, whatever it is decorated with. Logged beside the reward, never the reward."""

import re

from .decoration import Stated, is_choice, is_name, undecorate
from .expression import parse
from .normalize import normalize
from .rational import close, is_rounded, mixed_number, parse_rational
from .strict import MAX_DEPTH, same, same_items, same_number
from .structure import Parts, relation, take_apart
from .value import proportional, same_value, symbols

MAX_CHARS = 1_000  # longer answers are left to the strict profile
_JOINT = re.compile(r",? ?(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]) ?|,? ?\\(?:lor|vee)(?![A-Za-z]) ?")
_MATRIX_NAME = re.compile(r"matrix:(?:[pb]matrix|array):")
_REALS = frozenset(("\\mathbb{R}", "\\mathbf{R}", "\\R", "(-\\infty,\\infty)"))
_RISING = frozenset(("<", "\\le"))


def alike(answer: str, gold: str, depth: int = 0) -> bool:
    """Whether two answers, as written, state the same value.

    Beyond the strict profile: a unit, percent, degree or dollar sign where the other side has none or the same; a left
    side (``x =``, ``(x,y) =``, ``f(x) =``) likewise; the letter of a choice; mixed numbers; lists joined by "and" or
    "or", ``\\pm``, solutions in any order; an inequality for its interval; expressions of equal value; a capital.
    """
    if len(answer) > MAX_CHARS or len(gold) > MAX_CHARS or depth > MAX_DEPTH:
        return False
    normal_a, normal_g = normalize(answer), normalize(gold)
    if same(normal_a, normal_g):
        return True
    a, g = undecorate(answer), undecorate(gold)
    if not a.core or not g.core or (a.left and g.left and a.left != g.left):
        return False
    if a.unit and g.unit and a.unit != g.unit:
        return False
    if same(a.core, g.core):
        return True
    if (verdict := _alike_numbers(a, g)) is not None:
        return verdict
    if (verdict := _alike_parts(a, g, depth)) is not None:
        return verdict
    return (
        is_choice(g.core, a.core)
        or is_choice(a.core, g.core)
        or (a.core in _REALS and g.core in _REALS)
        or _as_interval(a.core, g.core)
        or same_value(a.core, g.core)
        or _same_equation(normal_a, normal_g)
        or _same_word(a.core, g.core)
    )


def _alike_numbers(a: Stated, g: Stated) -> bool | None:
    """Verdict on two numbers, mixed ones and percentages included; None where one of them is no number."""
    value_a = parse_rational(a.core) or mixed_number(a.core)
    value_g = parse_rational(g.core) or mixed_number(g.core)
    if value_a is None or value_g is None:
        return same_number(a.core, g.core)
    rounded = is_rounded(a.core) or is_rounded(g.core)
    if a.unit == "%" != g.unit:
        value_a = value_a[0], value_a[1] * 100
    elif g.unit == "%" != a.unit:
        value_g = value_g[0], value_g[1] * 100
    return close(value_a, value_g, rounded)


def _alike_parts(stated_a: Stated, stated_g: Stated, depth: int) -> bool | None:
    """Verdict on two lists, sets, tuples, unions or matrices; None where neither is one."""
    a, g = stated_a.core, stated_g.core
    solutions = is_name(stated_a.left) or is_name(stated_g.left)  # x = 1, 2
    parts_a, parts_g = _listed(a, solutions), _listed(g, solutions)
    if parts_a is None and parts_g is None:
        return None
    if parts_a is None or parts_g is None:
        other, parts = (a, parts_g) if parts_g else (g, parts_a)
        if parts.kind == "list" and len(parts.items) == 1:
            return alike(other, parts.items[0], depth + 1)
        return _as_interval(a, g) or (a in _REALS and g in _REALS)
    if parts_a.kind != parts_g.kind:
        return False
    labels = [item.partition("=")[0] for item in parts_a.items if "=" in item]
    if len(labels) == len(parts_a.items):  # x = 1, y = 2
        if all("=" in item for item in parts_g.items):
            parts_a = parts_a._replace(ordered=False)
        elif labels != sorted(labels):  # y = 1, x = 2 does not state (1, 2)
            return False
    return same_items(parts_a, parts_g, lambda x, y: alike(x, y, depth + 1), depth)


def _listed(core: str, solutions: bool) -> Parts | None:
    """Parts of ``core``; a list's order counts unless it is joined by words, a set, of tuples, or of solutions."""
    s, joints = _JOINT.subn(",", core)
    parts = take_apart(s)
    if parts is None or parts.kind in ("list", "\\{\\}"):
        items = parts.items if parts else [s]
        both_signs = [[i.replace("\\pm", sign) for sign in "+-"] if i.count("\\pm") == 1 else [i] for i in items]
        items = [item.removeprefix("+") for pair in both_signs for item in pair]
        if parts is None and len(items) == 1:
            return None
        solutions = solutions or (len({item.partition("=")[0] for item in items}) == 1 and "=" in items[0])
        ordered = parts is not None and parts.ordered and not joints and len(items) == len(parts.items)
        tuples = all(item.startswith("(") for item in items)
        return Parts("list", items, ordered and not (tuples or solutions))
    return parts._replace(kind=_MATRIX_NAME.sub("matrix:", parts.kind))


def _as_interval(a: str, g: str) -> bool:
    """Whether one is an interval and the other the inequality that describes it."""
    interval_a, interval_g = _interval(a), _interval(g)
    if (interval_a is None) == (interval_g is None):
        return False
    return same(interval_a or a, interval_g or g)


def _interval(core: str) -> str | None:
    """``(-\\infty,3]`` for ``x\\le 3``, ``[0,1)`` for ``0\\le x<1``; None where ``core`` is no such inequality."""
    sides, signs = relation(core) or ([], [])
    if not signs or not _RISING.issuperset(signs):
        return None
    if len(sides) == 3 and is_name(sides[1]):
        return f"{'[('[signs[0] == '<']}{sides[0]},{sides[2]}{'])'[signs[1] == '<']}"
    if len(sides) == 2 and is_name(sides[0]):
        return f"(-\\infty,{sides[1]}{'])'[signs[0] == '<']}"
    if len(sides) == 2 and is_name(sides[1]):
        return f"{'[('[signs[0] == '<']}{sides[0]},\\infty)"
    return None


def _same_equation(a: str, g: str) -> bool:
    """Whether two equations in two letters or more are multiples of each other, as those of a line or a curve."""
    equations = []
    for s in (a, g):
        sides, signs = relation(s) or ([], [])
        trees = [parse(side) for side in sides]
        if signs != ["="] or None in trees or len(symbols(("add", trees))) < 2:
            return False
        equations.append(trees)
    return proportional(*equations)


def _same_word(a: str, g: str) -> bool:
    """Whether two words differ in capitals only; ``AB`` and ``ab`` are names, not words."""
    wordlike = a.replace(" ", "").isalpha() and len(a) > 2 and not a.isupper() and not g.isupper()
    return wordlike and a.casefold() == g.casefold()
