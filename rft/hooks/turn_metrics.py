"""Numbers about the turns of a step's samples, for agents that search: how much, how long, and what it was good for."""

from collections.abc import Iterable

import numpy as np

from rft.record.conversation import numbers_of

MOST_SEARCHES = 4  # samples of so many searches and more are one class


def turn_metrics(samples: list) -> dict[str, float]:
    """Statistics over the conversations of one training step; {} unless every sample says how many turns it had.

    The means of what an agent logs (`searches`, `turns`, `answered`, …) are metrics already; these need sums or single
    values, over all samples of the step.

    Args:
        samples: OpenRLHF `Experience`s of one sample each: `action_mask` (1, tokens - 1); `info` with tensors (1,),
            `turns` and, where the agent logs them, `searches`, `invalid_actions`, `information_cut` (observations that
            were cut) and `correctness`; `texts` with JSON lists of seconds, `turn_seconds` and `search_latencies`.

    Returns:
        `turn_tokens`, sampled tokens a turn; `turn_seconds`, of sampling one; `invalid_action_share`, of the turns;
        `information_cut_share`, of the searches; `search_latency_mean` and `search_latency_p95`, seconds; and
        `correctness_searches_N` with `searches_N_share`, of the samples with N searches, N from 0 to 4, which stands
        for 4 and more. What was not logged, or is a share of nothing, is absent.
    """
    turns = column(samples, "turns")
    if turns is None or not turns.sum():
        return {}
    metrics = {"turn_tokens": sum(int(sample.action_mask.sum()) for sample in samples) / turns.sum()}
    if seconds := _all(samples, "turn_seconds"):
        metrics["turn_seconds"] = np.mean(seconds)
    if (invalid := column(samples, "invalid_actions")) is not None:
        metrics["invalid_action_share"] = invalid.sum() / turns.sum()
    if latencies := _all(samples, "search_latencies"):
        metrics["search_latency_mean"] = np.mean(latencies)
        metrics["search_latency_p95"] = np.quantile(latencies, 0.95)
    if (searches := column(samples, "searches")) is not None:
        cut = column(samples, "information_cut")
        if cut is not None and searches.sum():
            metrics["information_cut_share"] = cut.sum() / searches.sum()
        metrics |= by_searches(searches, column(samples, "correctness"))
    return {name: float(value) for name, value in metrics.items()}


def by_searches(searches: np.ndarray, correct: np.ndarray | None) -> dict[str, float]:
    """How many samples searched how often, and the share of right ones among them; both arrays (samples,)."""
    found = {}
    for count in range(MOST_SEARCHES + 1):
        those = searches == count if count < MOST_SEARCHES else searches >= count
        found[f"searches_{count}_share"] = those.mean()
        if those.any() and correct is not None:
            found[f"correctness_searches_{count}"] = correct[those].mean()
    return found


def _all(samples: Iterable, name: str) -> list[float]:
    return [value for sample in samples for value in numbers_of(getattr(sample, "texts", {}).get(name))]


def column(samples: list, name: str) -> np.ndarray | None:
    """One number of `info` a sample, or None unless every sample has it."""
    values = [float(sample.info[name][0]) if name in sample.info else np.nan for sample in samples]
    return None if np.isnan(values).any() else np.array(values)
