"""Statistics against scipy, brute force and hand-worked cases."""

from fractions import Fraction
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.evals.paired import bootstrap_interval, compare, sign_flip_p
from rft.stats import (
    holm,
    least_detectable_gain,
    majority_at_n,
    mcnemar_exact,
    mean_interval,
    mean_pass_at_k,
    pass_at_k,
    t_quantile,
    wilson_interval,
)


@pytest.mark.parametrize(("n", "c"), [(5, 0), (5, 2), (6, 3), (6, 6)])
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(n, c):
    samples = [i < c for i in range(n)]
    for k in range(1, n + 1):
        subsets = list(combinations(samples, k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_by_hand():
    assert pass_at_k(8, 2, 1) == 0.25
    assert pass_at_k(4, 1, 2) == 0.5
    assert mean_pass_at_k([(4, 1), (4, 0), (2, 2)], 2) == 0.5


@given(st.integers(1, 60), st.data())
def test_pass_at_1_is_the_mean_and_k_only_helps(n, data):
    c = data.draw(st.integers(0, n))
    assert pass_at_k(n, c, 1) == pytest.approx(c / n)
    values = [pass_at_k(n, c, k) for k in range(1, n + 1)]
    assert all(0 <= v <= 1 for v in values) and values == sorted(values)


@pytest.mark.parametrize(("n", "c", "k"), [(5, 6, 1), (5, -1, 1), (5, 1, 0), (5, 1, 6)])
def test_pass_at_k_refuses(n, c, k):
    with pytest.raises(ValueError, match="wanted 0 <= c <= n"):
        pass_at_k(n, c, k)


def test_no_problem_has_no_mean():
    with pytest.raises(ValueError, match="found no problem"):
        mean_pass_at_k([], 1)


# Computed with scipy 1.17 (binomtest(...).proportion_ci(method="wilson")), which the stack itself does not carry.
@pytest.mark.parametrize(
    ("successes", "n", "confidence", "want"),
    [
        (5, 18, 0.95, (0.12499753379553993, 0.5087265656029746)),
        (103, 200, 0.95, (0.44610849192745716, 0.5833261482812249)),
        (0, 18, 0.9, (0.0, 0.1306675895802327)),
        (997, 1000, 0.99, (0.9882064833170751, 0.9992418987689385)),
    ],
)
def test_wilson_agrees_with_scipy(successes, n, confidence, want):
    assert wilson_interval(successes, n, confidence) == pytest.approx(want, abs=1e-12)


@given(st.integers(1, 2000), st.data())
def test_wilson_ends_are_where_the_score_test_turns(n, data):
    successes = data.draw(st.integers(0, n))
    low, high = wilson_interval(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    for end in (low, high):
        assert (successes / n - end) ** 2 == pytest.approx(1.959963984540054**2 * end * (1 - end) / n, abs=1e-9)


def test_wilson_of_18_problems():
    low, high = wilson_interval(5, 18)
    assert (round(low, 3), round(high, 3)) == (0.125, 0.509)
    assert wilson_interval(0, 18)[0] == 0.0 and wilson_interval(18, 18)[1] == 1.0


@pytest.mark.parametrize(("successes", "n", "confidence"), [(1, 0, 0.95), (3, 2, 0.95), (-1, 2, 0.95), (1, 2, 1.0)])
def test_wilson_refuses(successes, n, confidence):
    with pytest.raises(ValueError, match="wanted 0 <= successes"):
        wilson_interval(successes, n, confidence)


# scipy 1.17, binomtest(only_a, only_a + only_b).pvalue
@pytest.mark.parametrize(
    ("only_a", "only_b", "p_value"),
    [(1, 9, 0.021484375), (12, 25, 0.04703102743951604), (140, 100, 0.01166409231767769), (3, 3, 1.0), (0, 0, 1.0)],
)
def test_mcnemar_agrees_with_scipy(only_a, only_b, p_value):
    a = [True] * only_a + [False] * only_b + [True, False]
    b = [False] * only_a + [True] * only_b + [True, False]
    assert mcnemar_exact(a, b) == (only_a, only_b, pytest.approx(p_value, abs=1e-12))
    assert mcnemar_exact(b, a).p_value == mcnemar_exact(a, b).p_value


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=12))
def test_mcnemar_is_the_share_of_coin_flips_as_lopsided(pairs):
    test = mcnemar_exact([x for x, _ in pairs], [y for _, y in pairs])
    flips = test.only_a + test.only_b
    lopsided = abs(test.only_a - test.only_b)
    share = sum(abs(2 * bits.bit_count() - flips) >= lopsided for bits in range(2**flips)) / 2**flips
    assert test.p_value == pytest.approx(share)


def test_mcnemar_by_hand():
    a = [True] * 1 + [False] * 9 + [True] * 50
    b = [False] * 1 + [True] * 9 + [True] * 50
    assert mcnemar_exact(a, b) == (1, 9, 2 * 11 / 1024)


def test_mcnemar_of_many_problems_does_not_overflow():
    assert mcnemar_exact([True] * 5000 + [False] * 5000, [False] * 5000 + [True] * 5000).p_value == 1.0
    assert mcnemar_exact([True] * 3000, [False] * 3000).p_value == 0.0


def test_mcnemar_wants_pairs():
    with pytest.raises(ValueError, match="found 1 and 2 outcomes"):
        mcnemar_exact([True], [True, False])


@pytest.mark.parametrize(
    ("votes", "want"),
    [
        ([("7", True), ("7", True), ("8", False)], 1.0),
        ([("7", True), ("8", False), ("8", False)], 0.0),
        ([("7", True), ("8", False)], 0.5),  # a tie is drawn
        ([("7", True), ("8", False), ("9", False), ("9", False), ("7", True)], 0.5),
        ([(None, False), (None, False), ("7", True)], 1.0),  # no answer is no vote
        ([(None, False)], 0.0),
    ],
)
def test_majority_by_hand(votes, want):
    assert majority_at_n(votes) == want


# scipy 1.17, stats.t.ppf
@pytest.mark.parametrize(
    ("probability", "degrees", "want"),
    [
        (0.975, 1, 12.706204736174694),
        (0.975, 2, 4.302652729749462),
        (0.9, 5, 1.4758840488244815),
        (0.975, 17, 2.1098155778333156),
        (0.995, 199, 2.600760216058516),
        (0.975, 1318, 1.9617655127673146),
    ],
)
def test_t_quantile_agrees_with_scipy(probability, degrees, want):
    assert t_quantile(probability, degrees) == pytest.approx(want, rel=1e-9)


def test_mean_interval_agrees_with_scipy():
    values = [0, 0.125, 1, 0.5, 0.75, 0.25, 1, 1, 0, 0.625]
    # scipy 1.17, stats.t.interval(0.95, 9, mean, sem)
    assert mean_interval(values) == pytest.approx((0.23053312920675678, 0.8194668707932433), abs=1e-12)


def test_mean_interval_without_spread_is_not_a_point():
    assert mean_interval([1.0] * 18) == wilson_interval(18, 18)
    assert mean_interval([0.0] * 18) == wilson_interval(0, 18)
    assert mean_interval([0.5] * 18) == mean_interval([0.5]) == (0.0, 1.0)
    with pytest.raises(ValueError, match="found no problem"):
        mean_interval([])


def test_samples_of_a_problem_are_not_counted_as_problems():
    """Eight samples that always agree say no more than one."""
    pooled = wilson_interval(8 * 9, 8 * 18)
    low, high = mean_interval([1.0] * 9 + [0.0] * 9)
    assert high - low > 2.5 * (pooled[1] - pooled[0])


def test_holm_by_hand():
    # 0.01·4, 0.02·3, then 0.03·2 = 0.06 and 0.04·1, which may not fall below what stands before it.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_never_helps(p_values):
    adjusted = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    ranked = [q for _, q in sorted(zip(p_values, adjusted, strict=True))]
    assert ranked == sorted(ranked)
    assert min(adjusted) == min(1.0, len(p_values) * min(p_values))


# scipy 1.17: the root of binom.sf(5, n, gain) = 0.8, six won problems being the fewest with p < 0.05
@pytest.mark.parametrize(
    ("n", "want"), [(18, 0.4035756519276986), (100, 0.07791107495026083), (500, 0.015766036916372322)]
)
def test_least_detectable_gain_agrees_with_scipy(n, want):
    assert least_detectable_gain(n) == pytest.approx(want, abs=1e-9)
    assert least_detectable_gain(5) is None


def test_sign_flip_agrees_with_scipy():
    a = [Fraction(x, 8) for x in (0, 1, 3, 8, 2, 4, 8, 5, 0, 7, 3, 2)]
    b = [Fraction(x, 8) for x in (2, 4, 3, 8, 5, 3, 8, 8, 1, 8, 4, 6)]
    result = compare(a, b)
    # scipy 1.17: permutation_test(samples, exact) and bootstrap(percentile, 200,000 resamples)
    assert result.p_value == pytest.approx(0.01953125, abs=1e-12)
    assert result.interval95 == pytest.approx((0.07291666666666667, 0.28125), abs=0.01)
    assert result.difference == pytest.approx(0.17708333333333334)
    assert (result.n, result.won, result.lost, result.tied, result.mcnemar_p) == (12, 8, 1, 3, None)


@given(st.lists(st.fractions(-1, 1, max_denominator=6), min_size=1, max_size=9))
def test_sign_flip_is_the_share_of_sign_patterns_as_extreme(differences):
    observed = abs(sum(differences))
    patterns = list(product((1, -1), repeat=len(differences)))
    sums = [abs(sum(s * d for s, d in zip(p, differences, strict=True))) for p in patterns]
    assert sign_flip_p(differences) == pytest.approx(sum(s >= observed for s in sums) / len(patterns))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_sign_flip_of_single_outcomes_is_mcnemar(pairs):
    result = compare([int(x) for x, _ in pairs], [int(y) for _, y in pairs])
    assert result.p_value == pytest.approx(result.mcnemar_p)
    assert result.won + result.lost + result.tied == len(pairs)


def test_bootstrap_is_repeatable_and_covers():
    values = [i % 7 / 7 for i in range(400)]
    low, high = bootstrap_interval(values, seed=3)
    assert (low, high) == bootstrap_interval(values, seed=3) != bootstrap_interval(values, seed=4)
    t_low, t_high = mean_interval(values)
    assert (low, high) == pytest.approx((t_low, t_high), abs=0.005)


def test_paired_sees_what_intervals_of_single_runs_do_not():
    """40 won and none lost of 1,000: overlapping intervals, yet certain."""
    a, b = [0] * 500 + [1] * 500, [0] * 460 + [1] * 540
    assert wilson_interval(500, 1000)[1] > wilson_interval(540, 1000)[0]
    assert compare(a, b).p_value < 1e-9


def test_paired_wants_the_same_problems():
    for a, b in (([1], [1, 0]), ([], [])):
        with pytest.raises(ValueError, match="wanted the same problems"):
            compare(a, b)
