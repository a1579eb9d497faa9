"""Take an answer apart: lists, tuples, intervals, sets, unions, matrices, relations."""

import re
from typing import NamedTuple

_BRACKETS = (("\\{", "\\}"), ("(", ")"), ("(", "]"), ("[", ")"), ("[", "]"))
_MATRIX = re.compile(r"\\begin\{([a-zA-Z]{0,9}matrix|array)\}(?:\{[^{}]*\})?(.*)\\end\{\1\}", re.DOTALL)
_RELATION = re.compile(r"(\\(?:le|ge|ne)(?![A-Za-z])|[<>=])")
_FLIPPED = {"\\ge": "\\le", "\\le": "\\ge", "<": ">", ">": "<", "=": "=", "\\ne": "\\ne"}
_TOP_LEVEL = re.compile(r"\\begin|\\end|\\cup(?![A-Za-z])|\\.|[(){}\[\],;]", re.DOTALL)


class Parts(NamedTuple):
    """What an answer is made of."""

    kind: str  # brackets as written, "list", "union", "matrix:…"
    items: list[str]
    ordered: bool


def take_apart(s: str) -> Parts | None:
    """Parts of a normal form that is a list, tuple, interval, set, union or matrix; None where it is none of these.

    ``(1,2]`` gives ``("(]", ["1", "2"], True)``. A set's elements have no order, nor do the members of a union.
    """
    if s.startswith("\\begin{") and (m := _MATRIX.fullmatch(s)):
        return _matrix(m[1], m[2])
    if "\\cup" in s and len(members := _split(s, "\\cup") or ()) > 1:
        return Parts("union", members, False)
    if (items := _comma_parts(s)) and len(items) > 1:
        return Parts("list", items, True)
    for left, right in _BRACKETS:
        if len(s) > len(left) + len(right) and s.startswith(left) and s.endswith(right):
            items = _comma_parts(s[len(left) : -len(right)])
            is_set = left == "\\{"
            if items and (len(items) > 1 or is_set):
                return Parts(left + right, items, not is_set)
    return None


def _comma_parts(s: str) -> list[str] | None:
    """``s`` split at top-level semicolons, else at top-level commas; None where a bracket closes that never opened."""
    parts = _split(s, ";") if ";" in s else None
    return parts if parts and len(parts) > 1 else _split(s, ",")


def _split(s: str, separator: str) -> list[str] | None:
    parts, depth, start = [], 0, 0
    for m in _TOP_LEVEL.finditer(s):
        token = m[0]
        if token == separator and depth == 0:
            parts.append(s[start : m.start()].strip())
            start = m.end()
        elif token in ("(", "[", "{", "\\{", "\\begin"):
            depth += 1
        elif token in (")", "]", "}", "\\}", "\\end"):
            depth -= 1
            if depth < 0:
                return None
    return [*parts, s[start:].strip()]


def _matrix(name: str, body: str) -> Parts | None:
    if "\\begin" in body:
        return None
    rows = body.removesuffix("\\\\").split("\\\\")
    cells = [row.split("&") for row in rows]
    shape = "x".join(str(len(row)) for row in cells)
    return Parts(f"matrix:{name}:{shape}", [cell.strip() for row in cells for cell in row], True)


def relation(s: str) -> tuple[list[str], list[str]] | None:
    """Sides and signs of ``a<b``, ``a\\le b<c``, ``a=b``, … turned to rise; None where there is no relation."""
    pieces = _RELATION.split(s)
    sides, signs = [piece.strip() for piece in pieces[::2]], pieces[1::2]
    if not signs or len(signs) > 4 or not all(sides):
        return None
    if all(sign in (">", "\\ge") for sign in signs):
        sides, signs = sides[::-1], [_FLIPPED[sign] for sign in signs[::-1]]
    return sides, signs
