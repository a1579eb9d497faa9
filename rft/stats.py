"""Statistics of evaluations with binary outcomes: pass@k, intervals, paired comparison. Standard library only."""

from collections.abc import Sequence
from math import comb, sqrt
from statistics import NormalDist
from typing import NamedTuple


class PairedTest(NamedTuple):
    """Result of `mcnemar_exact`."""

    only_a: int  # problems that only the first run solved
    only_b: int  # problems that only the second run solved
    p_value: float  # two-sided


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of pass@k from ``c`` correct of ``n`` samples: 1 - C(n-c, k) / C(n, k).

    Source: Chen et al. 2021, arXiv 2107.03374, equation 1. Raises ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"found n={n}, c={c}, k={k}; wanted 0 <= c <= n and 1 <= k <= n")
    return 1.0 - comb(n - c, k) / comb(n, k)


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int) -> float:
    """Mean pass@k over problems, each given as ``(n, c)``. Raises ValueError where there is none."""
    if not counts:
        raise ValueError("found no problem; wanted at least one (n, c)")
    return sum(pass_at_k(n, c, k) for n, c in counts) / len(counts)


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval (low, high) of a proportion, without continuity correction.

    Source: Wilson 1927, doi 10.1080/01621459.1927.10502953. Raises ValueError unless 0 <= successes <= n, n >= 1
    and 0 < confidence < 1.
    """
    if not (n >= 1 and 0 <= successes <= n and 0 < confidence < 1):
        raise ValueError(
            f"found successes={successes}, n={n}, confidence={confidence}; wanted 0 <= successes <= n, n >= 1, "
            "0 < confidence < 1"
        )
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    p = successes / n
    scale = 1 + z * z / n
    centre = (p + z * z / (2 * n)) / scale
    half = z / scale * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # The ends are exact at no and at all successes, where rounding would leave them a hair outside.
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


def mcnemar_exact(a: Sequence[bool], b: Sequence[bool]) -> PairedTest:
    """Exact two-sided McNemar test of two runs on the same problems, one outcome a problem, in the same order.

    Under the null each problem that only one run solved is a fair coin; the p-value is twice the smaller binomial
    tail, at most 1. Source: McNemar 1947, doi 10.1007/BF02295996. Raises ValueError where the lengths differ.
    """
    if len(a) != len(b):
        raise ValueError(f"found {len(a)} and {len(b)} outcomes; wanted one of each run for every problem")
    only_a = sum(bool(x) and not y for x, y in zip(a, b, strict=True))
    only_b = sum(bool(y) and not x for x, y in zip(a, b, strict=True))
    discordant = only_a + only_b
    tail = term = 1  # exact integers: the sum of the binomial coefficients C(discordant, i), i = 0 … min
    for i in range(min(only_a, only_b)):
        term = term * (discordant - i) // (i + 1)
        tail += term
    return PairedTest(only_a, only_b, min(1.0, 2 * (tail / 2**discordant)))
