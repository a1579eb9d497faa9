"""Compare two runs on the same problems: the unit is the problem, and both runs of a problem stay together."""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from typing import NamedTuple

import numpy as np

from rft.stats import mcnemar_exact

RESAMPLES = 10_000
CHUNK = 1 << 22  # drawn indices held at once


class Paired(NamedTuple):
    """Result of `compare`: run b against run a. Values are shares of problems, p-values two-sided."""

    n: int
    difference: float  # mean of b - a
    interval95: tuple[float, float]  # cluster bootstrap over problems
    p_value: float  # exact sign-flip test
    won: int  # problems on which b has the higher value
    lost: int
    tied: int
    mcnemar_p: float | None  # only where every problem has one outcome, 0 or 1


def compare(a: Sequence[float | Fraction], b: Sequence[float | Fraction], seed: int = 0) -> Paired:
    """Run b against run a, one value in [0, 1] a problem and run (share of correct samples), in the same order.

    Raises ValueError where the lengths differ or are 0.
    """
    if len(a) != len(b) or not a:
        raise ValueError(f"found {len(a)} and {len(b)} problems; wanted the same problems in both runs, at least one")
    differences = [exact(y) - exact(x) for x, y in zip(a, b, strict=True)]
    binary = all(value in (0, 1) for value in (*a, *b))
    return Paired(
        n=len(a),
        difference=float(sum(differences) / len(differences)),
        interval95=bootstrap_interval([float(d) for d in differences], seed),
        p_value=sign_flip_p(differences),
        won=sum(d > 0 for d in differences),
        lost=sum(d < 0 for d in differences),
        tied=sum(d == 0 for d in differences),
        mcnemar_p=mcnemar_exact([x == 1 for x in a], [y == 1 for y in b]).p_value if binary else None,
    )


def exact(share: float | Fraction) -> Fraction:
    """The share of samples that a float stands for: 0.333… is 1/3."""
    return Fraction(share).limit_denominator(10_000)


def bootstrap_interval(values: Sequence[float], seed: int = 0, confidence: float = 0.95) -> tuple[float, float]:
    """Percentile interval (low, high) of the mean, by 10,000 resamples of problems with replacement.

    Source: Efron 1979, doi 10.1214/aos/1176344552; clusters (problems) are resampled whole.
    """
    values, generator, means = np.asarray(values, dtype=np.float64), np.random.default_rng(seed), []
    rows = max(1, CHUNK // len(values))
    for done in range(0, RESAMPLES, rows):
        drawn = generator.integers(0, len(values), (min(rows, RESAMPLES - done), len(values)))
        means.append(values[drawn].mean(axis=1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), (tail, 1 - tail))
    return float(low), float(high)


def sign_flip_p(differences: Sequence[Fraction]) -> float:
    """Exact two-sided p-value of the sum of paired differences when the sign of each is a fair coin.

    Differences of shares of correct samples are multiples of one fraction, so the sum's distribution over all 2**n sign
    patterns is a walk on integers, computed without sampling. For outcomes of 0 and 1 it is McNemar's exact test.
    """
    unit = lcm(*(d.denominator for d in differences))
    steps = [abs(int(d * unit)) for d in differences if d != 0]
    reach, observed = sum(steps), abs(int(sum(differences) * unit))
    chance = np.zeros(2 * reach + 1)
    chance[reach] = 1.0
    for step in steps:
        # np.roll would wrap around only beyond `reach`, where nothing is yet.
        chance = (np.roll(chance, step) + np.roll(chance, -step)) / 2
    sums = np.abs(np.arange(-reach, reach + 1))
    return float(min(1.0, chance[sums >= observed].sum()))
