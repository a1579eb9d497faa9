"""Numbers about conversations: how often they searched, whether that helped, and what went wrong."""

from rft.record.conversation import MODEL, numbers_of
from rft.stats import measured


def is_conversation(record: dict) -> bool:
    """Whether a record is a sample of an agent."""
    return "searches" in record and isinstance(record.get("turns"), list)


def summary(groups: list[list[dict]]) -> dict:
    """What conversations had, over all samples.

    Args:
        groups: the records of each problem, see `rft.evals.conversations.sample`.

    Returns:
        means a sample of `searches`, `turns`, `observation_tokens`; shares of samples `no_search`, `told_to_answer`;
        `invalid_actions`, the share of turns; `information_cut`, the share of observations with passages that were cut;
        `search_seconds`, the mean of a search, None where there was none; `by_searches`, by number of searches as text:
        `samples`, and over the problems that have such `n`, `value` (the share of correct ones) and `interval95`.
    """
    records = [record for group in groups for record in group]
    turns = sum(_turns(record) for record in records)
    searches = sum(record["searches"] for record in records)
    seconds = [each for record in records for each in numbers_of(record["search_latencies"])]

    def mean(name: str) -> float:
        return sum(record[name] for record in records) / len(records)

    return {
        "searches": mean("searches"),
        "turns": turns / len(records),
        "observation_tokens": mean("observation_tokens"),
        "no_search": sum(not record["searches"] for record in records) / len(records),
        "told_to_answer": mean("forced_answer"),
        "invalid_actions": sum(record["invalid_actions"] for record in records) / turns,
        "information_cut": sum(record["information_cut"] for record in records) / searches if searches else 0.0,
        "search_seconds": sum(seconds) / len(seconds) if seconds else None,
        "by_searches": {str(number): _accuracy(groups, number) for number in _numbers(records)},
    }


def sentence(found: dict) -> str:
    """A `summary` in words, for a terminal or a page."""
    took = "" if found["search_seconds"] is None else f", {found['search_seconds']:.3f} s a search"
    by = ", ".join(
        f"{number}: {one['value']:.3f} ({one['interval95'][0]:.3f}-{one['interval95'][1]:.3f}, samples: "
        f"{one['samples']})"
        for number, one in found["by_searches"].items()
    )
    return (
        f"{found['searches']:.2f} searches and {found['turns']:.2f} turns a sample, "
        f"{100 * found['invalid_actions']:.1f}% of turns invalid{took}; share correct by number of searches: {by}"
    )


def _accuracy(groups: list[list[dict]], number: int) -> dict:
    such = [[r["correct"] for r in group if int(r["searches"]) == number] for group in groups]
    such = [group for group in such if group]
    return {"n": len(such), "samples": sum(map(len, such))} | measured([sum(group) / len(group) for group in such])


def _numbers(records: list[dict]) -> list[int]:
    return sorted({int(record["searches"]) for record in records})


def _turns(record: dict) -> int:
    return sum(turn["by"] == MODEL for turn in record["turns"])
