"""Statistics of evaluations: pass@k, majority votes, intervals over problems. Standard library only.

Two runs on the same problems are compared in `rft.evals.paired`.
"""

from collections.abc import Hashable, Sequence
from math import comb, cos, pi, sin, sqrt
from statistics import NormalDist, stdev
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


def majority_at_n(votes: Sequence[tuple[Hashable | None, bool]]) -> float:
    """Probability that a majority vote over one problem's samples is right, ties broken by a fair draw.

    Args:
        votes: one (answer, correct) a sample. Equal answers are one candidate (see `rft.evals.scores.votes` for
            answers that only mean the same); None abstains.

    Returns:
        The share of right ones among the candidates with the most votes; 0 where every sample abstains. A candidate is
        right as its first sample is: answers that are written alike are graded alike.

    Source: self-consistency (Wang et al. 2022, arXiv 2203.11171). Raises ValueError where there is no sample.
    """
    if not votes:
        raise ValueError("found no sample; wanted at least one (answer, correct)")
    count, right = {}, {}
    for answer, correct in votes:
        if answer is not None:
            count[answer] = count.get(answer, 0) + 1
            right.setdefault(answer, correct)
    leaders = [answer for answer, n in count.items() if n == max(count.values())]
    return sum(right[answer] for answer in leaders) / len(leaders) if leaders else 0.0


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student's t interval (low, high) of the mean over problems, cut to [0, 1].

    Args:
        values: one number in [0, 1] a problem (its share of correct samples, its pass@k). Problems are the unit:
            samples of one problem are not independent, and pooling them makes the interval too narrow.

    Problems that all have one value have no spread to measure; the interval is then Wilson's for a share of 0 or 1, and
    (0, 1) for a value between or for a single problem. Raises ValueError where there is no problem.
    """
    n = len(values)
    if n == 0:
        raise ValueError("found no problem; wanted at least one value")
    if min(values) == max(values):
        return wilson_interval(round(sum(values)), n, confidence) if values[0] in (0, 1) else (0.0, 1.0)
    mean, half = sum(values) / n, t_quantile((1 + confidence) / 2, n - 1) * stdev(values) / sqrt(n)
    return max(0.0, mean - half), min(1.0, mean + half)


def measured(values: Sequence[float]) -> dict[str, float | list[float]]:
    """`value`, the mean over problems, and `interval95`: Wilson's for outcomes of 0 and 1, Student's t for others.

    Raises ValueError where there is no problem.
    """
    binary = all(value in (0, 1) for value in values)
    interval = wilson_interval(round(sum(values)), len(values)) if binary else mean_interval(values)
    return {"value": sum(values) / len(values), "interval95": list(interval)}


def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t for an upper probability in (0.5, 1) and integer degrees of freedom, by bisection.

    The distribution function is the finite sum of Abramowitz and Stegun 26.7.3 and 26.7.4.
    """
    if not (0.5 < probability < 1 and degrees >= 1):
        raise ValueError(f"found {probability}, {degrees}; wanted 0.5 < probability < 1 and degrees >= 1")

    def inside(angle: float) -> float:  # P(|t| < sqrt(degrees) · tan(angle))
        c, s = cos(angle), sin(angle)
        total, term = 0.0, c if degrees % 2 else 1.0
        for i in range(2 if degrees % 2 else 1, degrees, 2):
            total, term = total + term, term * c * c * i / (i + 1)
        return 2 / pi * (angle + s * total) if degrees % 2 else s * total

    low, high = 0.0, pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if (1 + inside(middle)) / 2 < probability else (low, middle)
    return sqrt(degrees) * sin(high) / cos(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values of a family of tests, in the order given: below α with error rate α over the whole family.

    Source: Holm 1979, Scandinavian Journal of Statistics 6, 65-70.
    """
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


def least_detectable_gain(n: int, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """The smallest true gain, in shares of problems, that n problems detect with `power` if no problem is ever lost.

    The exact McNemar test then rejects once `2 · 2**-won <= alpha`, and the number won is binomial. A run that also
    loses problems needs a larger gain, so this is a bound for every pair of runs. None where even n won problems of n
    would not be significant.
    """
    needed = next(won for won in range(1, 1100) if 2 * 0.5**won <= alpha)
    if needed > n:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        gain = (low + high) / 2
        missed = sum(comb(n, won) * gain**won * (1 - gain) ** (n - won) for won in range(needed))
        low, high = (low, gain) if 1 - missed >= power else (gain, high)
    return high
