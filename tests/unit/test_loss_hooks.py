"""Ratio tails and loss scales, against hand-worked cases."""

import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rft.hooks.loss import ratio_tails, token_weights
from rft.options.loss import require_on_policy


def test_tails_of_a_known_vector():
    raw = torch.tensor([-30.0, 0.5, 25.0, -1.0])
    assert ratio_tails(raw, raw.clamp(-20, 20)) == {
        "log_ratio_raw_max": 25.0,
        "log_ratio_max": 20.0,
        "log_ratio_min": -20.0,
        "ratio_max": pytest.approx(torch.tensor(20.0).exp().item()),
        "log_ratio_abs_p99": 20.0,
        "tokens_in_batch": 4,
    }


def test_tails_of_nothing_are_none():
    tails = ratio_tails(torch.zeros(0), torch.zeros(0))
    assert tails.pop("tokens_in_batch") == 0
    assert set(tails.values()) == {None}


@given(st.lists(st.integers(1, 500), min_size=4, max_size=4), st.lists(st.integers(1, 500), min_size=4, max_size=4))
def test_scales_make_a_mean_over_all_tokens_of_a_step(mine, other):
    """Two ranks, two steps of two micro-batches: the scaled mean of means is the mean over tokens."""
    totals = [sum(mine[:2]) + sum(other[:2]), sum(mine[2:]) + sum(other[2:])]
    scales = [
        token_weights(counts, 2, 2, lambda _: torch.tensor(totals, dtype=torch.float64)) for counts in (mine, other)
    ]
    for step in (slice(0, 2), slice(2, 4)):
        # A loss of 1 a token in micro-batch 0 of rank 0, of 0 elsewhere: its mean of means is its scale over 4.
        assert scales[0][step][0] / 4 == pytest.approx(mine[step][0] / totals[step.start // 2])
        assert sum(scales[0][step]) + sum(scales[1][step]) == pytest.approx(4)


def test_a_step_without_a_token_weighs_nothing():
    totals = torch.tensor([0.0, 6.0], dtype=torch.float64)
    assert token_weights([0, 0, 4, 0], 2, 1, lambda _: totals) == [0, 0, 4 * 2 / 6, 0]


def options(**changes) -> types.SimpleNamespace:
    defaults = {
        "on_policy_ratio_one": True, "rollout_batch_size": 4, "n_samples_per_prompt": 2, "train_batch_size": 8,
        "max_epochs": 1, "async_train": False,
    }  # fmt: skip
    return types.SimpleNamespace(**(defaults | changes))


def test_ratio_one_is_for_exactly_on_policy_updates():
    require_on_policy(options())
    require_on_policy(options(on_policy_ratio_one=False, train_batch_size=4))
    for change in ({"train_batch_size": 4}, {"max_epochs": 2}, {"async_train": True}):
        with pytest.raises(ValueError, match=r"wanted: --train_batch_size 8"):
            require_on_policy(options(**change))
