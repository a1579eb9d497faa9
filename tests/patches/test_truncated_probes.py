"""Answers that were cut at the length limit: what `--mask_truncated` takes out of a rollout, and what stays."""

import pytest
import torch
from experiences import BUDGET, LENGTHS, maker, rollout

CUT = (1, 4, 6)


def by_number(experiences: list, name: str) -> dict[int, list]:
    """One tensor of each sample by its number, without the padding that its micro-batch brings along."""
    return {
        int(number): getattr(experience, name)[row][experience.attention_mask[row, 1:].bool()].tolist()
        for experience in experiences
        for row, number in enumerate(experience.info["number"])
    }


@pytest.mark.parametrize("options", [{}, {"use_dynamic_batch": False}, {"advantage_estimator": "reinforce_baseline"}])
def test_cut_answers_leave_the_loss_and_stay_in_their_group(options):
    """Their masks are empty; every mask else, and every advantage, is as without the option."""
    samples = rollout(CUT)
    plain = maker(**options).make_experience_batch(rollout(CUT))
    masked = maker(mask_truncated=True, **options).make_experience_batch(samples)
    before, after = by_number(plain, "action_mask"), by_number(masked, "action_mask")
    assert {number for number in after if not any(after[number])} == set(CUT)
    assert all(after[number] == before[number] for number in before if number not in CUT)
    assert by_number(masked, "advantages") == by_number(plain, "advantages")
    assert all(type(a.action_mask) is type(b.action_mask) for a, b in zip(masked, plain, strict=True))
    assert [int(sample.action_mask.sum()) for sample in samples] == list(LENGTHS)  # what samples are written from


@pytest.mark.parametrize(("cut", "totals"), [((), [21, 28]), (CUT, [10, 15]), ((0, 1, 2, 3), [0, 28])])
def test_micro_batches_are_weighed_by_the_tokens_that_are_left(cut, totals):
    """On each of two ranks; a step without a token weighs nothing."""
    from rft.hooks import token_batches

    made = maker(mask_truncated=True)
    experiences = token_batches.for_training(made.make_experience_batch(rollout(cut)), made.args)
    weights = [[], []]  # by optimizer step: (tokens, factor)
    step, half = 0, len(experiences) // 2
    for place, experience in enumerate(experiences):
        step = 0 if place == half else step
        assert experience.attention_mask.sum() <= BUDGET
        weights[step].append((int(experience.action_mask.sum()), experience.loss_scale))
        step += experience.ends_step
    for pairs, total in zip(weights, totals, strict=True):
        assert sum(tokens for tokens, _ in pairs) == total
        wanted = [tokens * 2 / total if total else 0.0 for tokens, _ in pairs]  # DeepSpeed averages over the ranks
        assert [scale for _, scale in pairs] == pytest.approx(wanted)


def test_a_mean_over_no_tokens_is_zero():
    from openrlhf.models.utils import masked_mean

    values, mask = torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([[1, 1], [0, 0]])
    assert masked_mean(values, mask, dim=-1).tolist() == [1.5, 0.0]
    assert masked_mean(values, mask).item() == 1.5
    assert masked_mean(values, 0 * mask).item() == 0.0
