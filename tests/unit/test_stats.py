"""Statistics against scipy, brute force and hand-worked cases."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.stats import mcnemar_exact, mean_pass_at_k, pass_at_k, wilson_interval


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
