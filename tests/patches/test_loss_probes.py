"""Probes of what the patches change about the loss: each fails when the patched lines are not the ones that run."""

import math
import types

import papers
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from ranks import run_module

from rft.options import command

CLIP = (0.2, 0.28)
LOW, HIGH = 0.7, 1.5  # of the weights; only IcePop looks at the lower one
ROUNDING = 2**-22  # relative: four of float32's half spacings

LOG_PROB = st.floats(-3, 0, width=32)
RESPONSE = st.lists(st.tuples(LOG_PROB, LOG_PROB, LOG_PROB), min_size=1, max_size=5)  # new, old, engine
BATCH = st.lists(st.tuples(RESPONSE, st.floats(-2, 2, width=32)), min_size=1, max_size=3)  # with its advantage


def padded(batch: list, which: int) -> torch.Tensor:
    longest = max(len(tokens) for tokens, _ in batch)
    return torch.tensor([[token[which] for token in tokens] + [0.0] * (longest - len(tokens)) for tokens, _ in batch])


def objective(kind: str, batch: list) -> tuple[float, list[list[float]]]:
    """Minus the papers' objective, a mean over all tokens, and its derivative by each log-probability."""
    count, loss, slopes = sum(len(tokens) for tokens, _ in batch), [], []
    for tokens, advantage in batch:
        _, old, engine = map(list, zip(*tokens, strict=True))
        weights = papers.weights(kind, old, engine, own_bounds(kind))
        terms = [papers.clipped_term(token[0], token[1], advantage, *CLIP) for token in tokens]
        loss += [-weight * value / count for weight, (value, _) in zip(weights, terms, strict=True)]
        slopes.append([-weight * slope / count for weight, (_, slope) in zip(weights, terms, strict=True)])
    return math.fsum(loss), slopes


def own_bounds(kind: str) -> list[float]:
    return [LOW, HIGH] if kind == "icepop" else [HIGH]


def corrected_loss(kind: str):
    """OpenRLHF's loss with this correction; where it does not know it, the test fails."""
    from openrlhf.models import PolicyLoss

    options = {"enable_vllm_is_correction": True, "vllm_is_correction_type": kind}
    try:
        return PolicyLoss(*CLIP, vllm_is_truncated_threshold=[LOW, HIGH], **options)
    except ValueError as unknown:
        pytest.fail(str(unknown))


def near(value: float, bounds) -> bool:
    return any(abs(value - math.log(bound)) < 1e-4 for bound in bounds)


@pytest.mark.parametrize("kind", papers.KINDS)
def test_loss_and_gradient_are_those_of_the_papers(kind):
    loss_fn = corrected_loss(kind)

    @settings(max_examples=100, suppress_health_check=list(HealthCheck))
    @given(BATCH)
    def check(batch):
        for tokens, _ in batch:  # no comparison hangs on float32's rounding
            _, old, engine = map(list, zip(*tokens, strict=True))
            assume(not any(near(value, (LOW, HIGH)) for value in papers.decisive(kind, old, engine)))
            assume(not any(near(token[0] - token[1], (1 - CLIP[0], 1 + CLIP[1])) for token in tokens))
        new, old, engine = (padded(batch, which) for which in range(3))
        new.requires_grad_()
        mask = torch.tensor([[1] * len(t) + [0] * (new.size(1) - len(t)) for t, _ in batch])
        advantages = torch.tensor([[advantage] for _, advantage in batch]).expand(new.shape)
        loss, *_ = loss_fn(new, old, advantages, mask, engine)
        loss.backward()
        value, slopes = objective(kind, batch)
        size = 2 * math.exp(3) * 1.5  # the largest term: advantage, ratio, weight
        assert loss.item() == pytest.approx(value, abs=16 * ROUNDING * size)
        for row, wanted in zip(new.grad, slopes, strict=True):
            assert row[: len(wanted)].tolist() == pytest.approx(wanted, abs=16 * ROUNDING * size)

    check()


@pytest.mark.parametrize(("kind", "wanted"), [("tis", 1.5), ("token-mis", 0.0), ("seq-mis", 0.0), ("icepop", 0.0)])
def test_weight_of_an_all_but_impossible_token_is_finite(kind, wanted):
    """Its ratio overflows, its weight must not."""
    old, rollout = torch.zeros(1, 1), torch.full((1, 1), -100.0)
    loss, _, ppo_kl, _ = corrected_loss(kind)(old.clone(), old, torch.ones(1, 1), torch.ones(1, 1), rollout)
    assert loss.item() == -wanted
    assert ppo_kl.item() == 0  # of the two policies that the ratio compares, not of the engine's


def advantages_of(estimator: str, rewards: torch.Tensor) -> torch.Tensor:
    """What OpenRLHF makes of rewards (groups, samples): (groups, samples), from responses of two tokens."""
    from openrlhf.trainer.ppo_utils.experience_maker import Experience, RemoteExperienceMaker

    groups, samples = rewards.shape
    maker = object.__new__(RemoteExperienceMaker)
    maker.advantage_estimator, maker.kl_ctl = estimator, types.SimpleNamespace(value=0.0)
    maker.args = types.SimpleNamespace(
        advantage_estimator=estimator, n_samples_per_prompt=samples, reward_clip_range=(-1000, 1000), gamma=1.0,
        overlong_buffer_len=None, stop_properly_penalty_coef=None, no_advantage_std_norm=False,
    )  # fmt: skip
    maker.strategy = types.SimpleNamespace(args=maker.args)
    shape = (groups * samples, 2)
    experience = Experience(
        index=list(range(groups * samples)), rewards=rewards.flatten(), kl=torch.zeros(shape),
        action_mask=torch.ones(shape, dtype=torch.long), info={"reward": rewards.flatten()},
    )  # fmt: skip
    (done,) = maker.compute_advantages_and_returns([experience])
    return done.advantages[:, 0].reshape(groups, samples)


@pytest.mark.parametrize("estimator", ["group_norm", "rloo", "dr_grpo", "reinforce_baseline"])
def test_groups_without_variance_have_no_advantage(estimator):
    """Eight rewards of 0.9, as a format bonus or a length penalty makes them, and every other k/1000."""
    constant = (torch.arange(-1000, 1001) / 1000).unsqueeze(1).repeat(1, 8)
    found = advantages_of(estimator, constant)
    assert found.abs().max() == 0
    if estimator == "group_norm":
        mixed = torch.tensor([[0.9] * 8, [1.0, 0, 0, 0, 0, 0, 0, 1.0]])
        found = advantages_of(estimator, mixed)
        assert found[0].eq(0).all()
        assert found[1].tolist() == pytest.approx(papers.group_norm(mixed[1].tolist(), 1e-6), rel=16 * ROUNDING)


@pytest.mark.parametrize("distance", [1.0, 2.5, 3.0, 8.0, 19.0, 40.0, 89.0, 1000.0])
def test_kl_loss_pulls_back_however_far_a_token_has_moved(distance):
    from openrlhf.models.utils import compute_approx_kl

    for away in (distance, -distance):
        log_probs = torch.tensor([away], requires_grad=True)
        kl = compute_approx_kl(log_probs, torch.zeros(1), "k3")
        kl.backward()
        assert kl.isfinite().all()
        assert log_probs.grad.isfinite().all()
        # Beyond 20 nats below the reference the estimate is its tangent, whose slope stays.
        wanted = papers.k3(max(away, -20.0))[1]
        assert log_probs.grad.item() == pytest.approx(wanted, rel=16 * ROUNDING)
        assert not compute_approx_kl(log_probs.detach(), torch.zeros(1), "k3").gt(10).any()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_entropy_has_a_gradient_at_any_temperature(checkpoint, temperature):
    from openrlhf.models import Actor

    actor = Actor(
        str(checkpoint), attn_implementation="eager", lora_rank=4, target_modules=["q_proj"], temperature=temperature
    )
    sequences = torch.arange(5, 17).unsqueeze(0)
    attention_mask, action_mask = torch.ones_like(sequences), torch.ones(1, 6)
    with torch.no_grad():
        logits = actor.model(sequences, attention_mask=attention_mask)["logits"].double() / temperature
    log_probs, output = actor(sequences, action_mask, attention_mask, return_output=True, return_entropy=True)
    exact = torch.distributions.Categorical(logits=logits).entropy()[:, :-1]
    assert torch.allclose(output.entropy.double(), exact, atol=1e-4)
    wanted = logits.log_softmax(-1)[:, :-1].gather(-1, sequences[:, 1:, None])[..., 0][:, -6:]
    assert torch.allclose(log_probs.double(), wanted, atol=1e-4)
    (log_probs.sum() - 0.1 * output.entropy.sum()).backward()
    gradients = [p.grad for p in actor.parameters() if p.requires_grad and p.grad is not None]
    assert gradients and all(gradient.isfinite().all() for gradient in gradients)


def test_corrections_have_the_names_and_bounds_of_the_papers():
    words = ["-m", command.MODULE, "--enable_vllm_is_correction", "--vllm_is_correction_type"]
    for kind in ("tis", "token-mis", "seq-mis", "icepop"):
        try:
            args = command.parse([*words, kind])
        except ValueError as refusal:
            pytest.fail(str(refusal))
        assert args.vllm_is_correction_type == kind
    with pytest.raises(ValueError, match="--vllm_is_correction_type seq-mis"):
        command.parse([*words, "mis"])


def test_the_trainer_refuses_what_preflight_refuses(checkpoint):
    stock = ["--pretrain", checkpoint, "--remote_rm_url", "none.py", "--vllm_num_engines", "1", "--actor", "eager"]
    # An address that Ray rejects at once: without the refusal a cluster would start here.
    options = ["--vllm_is_correction_type", "mis"]
    done = run_module("openrlhf.cli.train_ppo_ray", *stock, *options, environment={"RAY_ADDRESS": "nowhere"})
    assert done.returncode == 1, done.stdout
    assert "error: --vllm_is_correction_type: found mis" in done.stdout
    assert "Traceback" not in done.stdout
