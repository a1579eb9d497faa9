"""Order of released versions, without the packaging library: numbers, and what stands behind them as text."""

from __future__ import annotations

import re

_CLAUSE = re.compile(r"\s*(===|~=|==|!=|<=|>=|<|>)\s*([0-9][0-9A-Za-z.!+*-]*)\s*")


def order(version: str) -> tuple:
    """Sort key: 0.9.3 < 0.9.10 < 0.10.1 < 0.10.1.post1; a pre-release comes before its release."""
    public = version.split("+")[0]
    numbers = re.match(r"[0-9.]*", public)[0].rstrip(".")
    rest = public[len(numbers) :].lstrip(".")
    stage = 0 if not rest else 1 if rest.startswith("post") else -1
    parts = [int(part) for part in numbers.split(".") if part]
    while parts and parts[-1] == 0:
        parts.pop()
    return (tuple(parts), stage, tuple(int(n) for n in re.findall(r"\d+", rest)))


def satisfies(version: str, specifier: str) -> bool:
    """Whether a version fits every clause of `>=0.10.4,<1`; a clause that is not understood fits nothing."""
    return all(_fits(version, clause) for clause in specifier.split(","))


def _fits(version: str, clause: str) -> bool:
    match = _CLAUSE.fullmatch(clause)
    if not match:
        return False
    operator, wanted = match.groups()
    if wanted.endswith(".*"):
        inside = f"{version}.".startswith(wanted[:-1])
        return {"==": inside, "!=": not inside}.get(operator, False)
    found, bound = order(version), order(wanted)
    if operator == "~=":
        return found >= bound and f"{version}.".startswith(wanted.rpartition(".")[0] + ".")
    return {
        "===": version == wanted,
        "==": found == bound,
        "!=": found != bound,
        "<=": found <= bound,
        ">=": found >= bound,
        "<": found < bound,
        ">": found > bound,
    }[operator]
