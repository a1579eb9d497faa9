"""What a protocol makes of a turn, and what it writes back. Standard library only."""

from dataclasses import dataclass
from typing import Literal, NamedTuple


@dataclass(frozen=True)
class Action:
    """What a turn of the policy asks for.

    Args:
        kind: `search`, `answer`, or `invalid` for a turn that does neither.
        text: the query, the answer, or why the turn is invalid.
    """

    kind: Literal["search", "answer", "invalid"]
    text: str


class Observation(NamedTuple):
    """What the environment writes after a turn.

    Args:
        tokens: ids, of which none was sampled.
        cut: whether passages were cut to fit the limit.
    """

    tokens: list[int]
    cut: bool
