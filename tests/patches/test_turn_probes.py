"""Samples of several turns: what an environment wrote between them is part of the sequence and of nothing else."""

import types

import numpy as np
import pytest
import torch
from experiences import LENGTHS, PROMPT, maker, rollout
from layouts import samples_generator

from rft.hooks import token_batches
from rft.hooks.spike_report import prompt_hashes, tails_of, worst_tokens
from rft.hooks.step_metrics import StepMetrics, status_sums, token_metrics

OBSERVED = 2  # tokens of the environment behind the first sampled one, in samples that have room for them


def generator(**options):
    """OpenRLHF's sample generator, as far as it needs no engine."""

    made = object.__new__(samples_generator())
    made.args = types.SimpleNamespace(mask_truncated=False, agent_func_path="agent.py")
    vars(made.args).update(options)
    return made


def response(**changes) -> dict:
    """Three prompt tokens, an action of two, an observation of four, an action of three."""
    found = {
        "prompt": "p", "label": "l", "observation_tokens": list(range(12)), "action_ranges": [(3, 5), (9, 12)],
        "rollout_log_probs": [0.0] * 3 + [-1.0, -2.0] + [0.0] * 4 + [-3.0, -4.0, -5.0], "reward": 1.0, "scores": 1.0,
        "extra_logs": {}, "truncated": False,
    }  # fmt: skip
    return found | changes


def test_a_response_is_as_long_as_its_sampled_tokens():
    limits = {"prompt_max_len": 4, "max_new_tokens": 16}
    made = generator()._process_response_into_experience(response(), **limits)
    assert made.info["response_length"].tolist() == [5]
    assert made.action_mask.tolist() == [[0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1]]
    sampled = made.action_mask[0].bool()
    assert made.sequences[0, 1:][sampled].tolist() == [3, 4, 9, 10, 11]
    assert made.rollout_log_probs[0][sampled].tolist() == [-1, -2, -3, -4, -5]
    for ranges, wanted in (([], 0), ([(3, 12)], 9)):
        made = generator()._process_response_into_experience(response(action_ranges=ranges), **limits)
        assert made.info["response_length"].tolist() == [wanted]
    short = generator()._process_response_into_experience(response(), prompt_max_len=4, max_new_tokens=7)
    assert short.info["response_length"].tolist() == [4]  # what the context window cuts is not there


def test_the_overlong_penalty_is_for_sampled_tokens():
    from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

    made = generator()._process_response_into_experience(response(), prompt_max_len=4, max_new_tokens=8)
    args = types.SimpleNamespace(generate_max_len=8, overlong_buffer_len=4, overlong_penalty_factor=1.0)
    apply_length_penalties([made], args)
    assert made.rewards.tolist() == [1 - 1 / 4]  # one token beyond 8 - 4


def test_samples_that_do_not_say_that_they_were_cut_end_a_run_that_masks_them():
    silent = response()
    del silent["truncated"]
    info = generator()._process_response_into_experience(silent).info
    assert "truncated" in info and not info["truncated"].item()
    with pytest.raises(ValueError, match="does not say whether it was cut") as failure:
        generator(mask_truncated=True)._process_response_into_experience(silent)
    assert "wanted: truncated, True or False" in str(failure.value)
    for cut in (False, True):
        made = generator(mask_truncated=True)._process_response_into_experience(response(truncated=cut))
        assert made.info["truncated"].item() is cut


def conversations() -> list:
    """`rollout`, with an observation in every sample that has room for it and for a token behind it."""
    samples = rollout()
    for sample, length in zip(samples, LENGTHS, strict=True):
        if length > OBSERVED + 1:
            sample.action_mask[:, PROMPT : PROMPT + OBSERVED] = 0
    return samples


def holes(mask: torch.Tensor) -> torch.Tensor:
    """Positions of observations: after the first sampled token, before the last, not sampled."""
    mask = mask.bool()
    before = mask.cumsum(-1) > 0
    after = mask.flip(-1).cumsum(-1).flip(-1) > 0
    return ~mask & before & after


def trained(fill: float, **options) -> list:
    """What a rollout of conversations becomes, with `fill` as KL of every token that was not sampled."""
    made = maker(**options)
    made.kl_ctl.value = 0.1
    scored = made.make_experience

    def with_kl(samples: list) -> list:
        for experience in scored(samples):
            kl = torch.arange(experience.action_mask.numel()).view_as(experience.action_mask) / 64
            experience.kl = torch.where(holes(experience.action_mask), fill, kl)
        return samples

    made.make_experience = with_kl
    return made.make_experience_batch(conversations())


@pytest.mark.parametrize("estimator", ["group_norm", "reinforce_baseline", "reinforce", "rloo", "dr_grpo"])
@pytest.mark.parametrize("fill", [-3.0, float("nan")])
def test_what_lies_between_two_turns_has_no_part_in_rewards_and_advantages(estimator, fill):
    rollouts = [trained(value, advantage_estimator=estimator) for value in (0.0, fill)]
    for plain, other in zip(*rollouts, strict=True):
        mask = plain.action_mask.bool()
        assert torch.equal(plain.info["return"], other.info["return"])
        assert torch.equal(plain.advantages[mask], other.advantages[mask])


def test_values_between_two_turns_drop_out_of_advantages_without_a_discount():
    """What `rft.options.loss.require_undiscounted` relies on: as if nothing lay between the turns."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.tensor([[0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0]])
    values, rewards = (torch.randn(mask.shape, generator=generator) * mask for _ in range(2))
    chosen = mask.bool()
    joined = [tensor[chosen][None] for tensor in (values, rewards, mask)]
    whole, of_joined = (
        maker().get_advantages_and_returns(*all_of, 1.0, 1.0) for all_of in ((values, rewards, mask), joined)
    )
    for found, wanted in zip(whole, of_joined, strict=True):
        assert torch.allclose(found[chosen], wanted[0], atol=1e-6)


def test_micro_batches_are_weighed_by_sampled_tokens():
    made = maker()
    experiences = token_batches.for_training(made.make_experience_batch(conversations()), made.args)
    counts = [int(sample.action_mask.sum()) for sample in conversations()]
    assert sum(counts) == sum(LENGTHS) - OBSERVED * sum(length > OBSERVED + 1 for length in LENGTHS)
    for experience in experiences:
        step = counts[:4] if experience.info["number"][0] < 4 else counts[4:]
        assert experience.loss_scale == pytest.approx(int(experience.action_mask.sum()) * 2 / sum(step))


KINDS = {
    "plain": {}, "tis": {"vllm_is_correction_type": "tis"}, "token-mis": {"vllm_is_correction_type": "token-mis"},
    "seq-mis": {"vllm_is_correction_type": "seq-mis"}, "icepop": {"vllm_is_correction_type": "icepop"},
    "gspo": {"policy_loss_type": "gspo"}, "dual": {"dual_clip": 3.0},
}  # fmt: skip


def learned(options: dict, disturbed: bool) -> dict:
    """Loss, gradient and every number of a micro-batch with observations; `disturbed`: with other log-probabilities
    there, of the policy before the update, of the engine and of the reference, and other advantages and entropies."""
    from openrlhf.models import PolicyLoss
    from openrlhf.models.utils import compute_approx_kl, masked_mean

    made = torch.Generator().manual_seed(1)
    rows = [0, 0, 1, 1, 1, 0, 0, 0, 1, 1], [0, 1, 1, 0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 1, 0, 1, 0, 1, 0, 1]
    mask = torch.tensor(rows)
    new, old, engine, base, advantages, entropy = (torch.randn(mask.shape, generator=made) for _ in range(6))
    new, old, engine, base = (-value.abs() for value in (new, old, engine, base))
    if disturbed:
        for value in (old, engine, base, advantages, entropy):
            value[~mask.bool()] = 40 * torch.randn(int((1 - mask).sum()), generator=made)
    policy = new.clone().requires_grad_()
    corrects = "vllm_is_correction_type" in options
    bounds = {"enable_vllm_is_correction": True, "vllm_is_truncated_threshold": [0.5, 2.0]} if corrects else {}
    loss_fn = PolicyLoss(0.2, 0.28, **options, **bounds)
    scored = policy * mask  # as OpenRLHF's Actor gives them
    loss, *numbers = loss_fn(scored, old, advantages, mask, engine)
    kl = masked_mean(compute_approx_kl(scored, base, "k3"), mask)
    total = loss + 0.1 * kl - 0.01 * masked_mean(entropy, mask)
    total.backward()
    experience = types.SimpleNamespace(
        action_mask=mask, advantages=advantages, action_log_probs=old, rollout_log_probs=engine, info={}
    )
    kept = StepMetrics()
    kept.add(types.SimpleNamespace(global_steps=0), loss_fn, experience, scored, old, entropy)
    tokens = {name: np.concatenate(parts) for name, parts in kept.tokens.items()}
    tails = {name: value for name, value in vars(loss_fn).items() if "ratio" in name or "tokens" in name}
    status = {"policy_loss": loss.item(), "kl": kl.item(), "ppo_kl": numbers[1].item()}
    micro = {
        "sequences": torch.arange(33).view(3, 11), "attention_mask": torch.ones(3, 11), "action_mask": mask,
        "new_log_probs": scored.detach(), "action_log_probs": old, "advantages": advantages,
        "rollout_log_probs": engine, "base_action_log_probs": base,
    }  # fmt: skip
    letters = types.SimpleNamespace(decode=str)
    return {
        "loss": total.item(), "numbers": [None if number is None else number.item() for number in numbers],
        "gradient": policy.grad.tolist(), "tails": tails,
        "raw": kept.log_ratio_raw_max, "metrics": token_metrics(tokens), "spike": tails_of(micro),
        "sums": status_sums(status, experience, loss_fn.token_level_loss),
        "worst": worst_tokens([micro], letters), "prompts": prompt_hashes(micro),
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_at_observations_change_no_number(kind):
    """Bit for bit; of the gradient too, which is 0 there."""
    plain, disturbed = (learned(KINDS[kind], disturbed) for disturbed in (False, True))
    for name, value in plain.items():
        assert disturbed[name] == value, name
    assert plain["metrics"]["tokens_in_batch"] == 13 and len(plain["worst"]) == 13
    assert [[slope != 0 for slope in row][:2] for row in plain["gradient"]] == [[False] * 2, [False, True], [False] * 2]
    assert plain["gradient"][0][5:8] == [0, 0, 0]


def test_the_resident_actor_scores_the_tokens_of_both_turns_and_none_between(checkpoint):
    """What it says of a sampled token does not depend on whether its neighbours are scored."""
    from openrlhf.models import Actor

    lora = {"lora_rank": 8, "lora_alpha": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
    tokens = torch.randint(5, 60, (2, 40), generator=torch.Generator().manual_seed(0))
    attention = torch.ones_like(tokens)
    attention[1, 35:] = 0
    turns = torch.zeros(2, 39, dtype=torch.long)
    turns[0, 9:14] = turns[0, 22:26] = turns[0, 30:39] = turns[1, 7:8] = turns[1, 15:30] = 1
    whole = torch.ones(2, 39, dtype=torch.long)
    whole[1, 34:] = 0
    options = {"attn_implementation": "eager", "head_dtype": "float32", "temperature": 0.8}
    for which in ("resident", "eager"):
        actor = Actor(str(checkpoint), actor=which, **options, **lora)
        call = {"attention_mask": attention, "return_output": True, "return_entropy": True}
        (ours, output), (theirs, wanted) = (actor(tokens, mask, **call) for mask in (turns, whole))
        chosen = turns.bool()
        assert torch.equal(ours != 0, chosen)
        assert torch.allclose(ours[chosen], theirs[chosen], atol=1e-5)
        entropies = [found.entropy[:, -39:][chosen] for found in (output, wanted)]
        assert torch.allclose(*entropies, atol=1e-5)
        slopes = []
        for log_probs in (ours, theirs):
            actor.model.zero_grad()
            (log_probs * turns).sum().backward()
            slopes.append([p.grad.clone() for p in actor.model.parameters() if p.requires_grad and p.grad is not None])
        assert len(slopes[0]) == len(slopes[1]) > 0
        scale = max(slope.abs().max() for slope in slopes[1])
        assert all((a - b).abs().max() <= 0.01 * scale for a, b in zip(*slopes, strict=True))
