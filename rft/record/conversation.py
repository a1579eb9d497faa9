"""A sample as a conversation: what the policy sampled and what its environment wrote, in turns."""

import json
from collections.abc import Sequence

MODEL, ENVIRONMENT = "model", "environment"


def segments(sampled: Sequence[int]) -> list[tuple[str, int, int]]:
    """(MODEL or ENVIRONMENT, first token, behind the last one) of each part behind the prompt, in order.

    Args:
        sampled: of each token of a sequence whether the policy sampled it (not 0). What stands before the first such
            token is the prompt.
    """
    found: list[tuple[str, int, int]] = []
    for place, flag in enumerate(sampled):
        by = MODEL if flag else ENVIRONMENT
        if found and found[-1][0] == by:
            found[-1] = (by, found[-1][1], place + 1)
        elif found or flag:
            found.append((by, place, place + 1))
    return found


def turns_of(row: dict) -> list[dict]:
    """The turns of a sample as files hold it: dicts of `by`, `text`, `tokens` and, of the model's where it is known,
    `seconds` of sampling. A sample without turns is its response, one turn of the model.

    What is no such dict is left out: files may come from elsewhere.
    """
    turns = row.get("turns")
    found = [turn for turn in turns if _is_turn(turn)] if isinstance(turns, list) else []
    return found or [{"by": MODEL, "text": str(row.get("response", "")), "tokens": row.get("response_tokens")}]


def numbers_of(text: object) -> list[float]:
    """The numbers of a JSON list, as an agent logs seconds of turns and searches; [] for anything else."""
    try:
        values = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return []
    return [float(v) for v in values if type(v) in (int, float)] if isinstance(values, list) else []


def _is_turn(turn: object) -> bool:
    return isinstance(turn, dict) and turn.get("by") in (MODEL, ENVIRONMENT) and isinstance(turn.get("text"), str)
