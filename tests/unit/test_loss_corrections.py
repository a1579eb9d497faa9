"""Corrections, group advantages and KL estimates against the papers' formulas in float64, and what is refused."""

import math
from pathlib import Path

import papers
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from preflight_options import options

from rft.hooks.advantages import GROUP_EPSILON, group_advantages
from rft.hooks.corrections import rollout_weights
from rft.hooks.kl import approx_kl
from rft.options.loss import CORRECTIONS, correction_bounds

ROUNDING = 2**-22  # relative: four of float32's half spacings, for a difference, a sum, an exponential and a product
LOG_PROBS = st.lists(st.tuples(st.floats(-12, 0, width=32), st.floats(-12, 0, width=32)), min_size=1, max_size=12)
BOUNDS = st.tuples(st.floats(0, 1), st.floats(1, 20))


def own_bounds(kind: str, pair: tuple[float, float]) -> list[float]:
    return list(pair) if kind == "icepop" else [pair[1]]


def sharp(kind: str, trainer: list[float], engine: list[float], bounds: list[float]) -> bool:
    """No comparison hangs on float32's rounding."""
    logs = [math.log(bound) for bound in bounds if bound > 0]
    spread = 1e-4  # of a logarithm: a difference of numbers up to 12 in float32 is off by 1e-6, a sum of 12 by 1e-5
    return all(abs(value - log) > spread for value in papers.decisive(kind, trainer, engine) for log in logs)


@settings(max_examples=300)
@given(st.sampled_from(papers.KINDS), LOG_PROBS, BOUNDS)
def test_weights_are_those_of_the_papers(kind, tokens, pair):
    trainer, engine = map(list, zip(*tokens, strict=True))
    bounds = own_bounds(kind, pair)
    assume(sharp(kind, trainer, engine, bounds))
    log_ratio = torch.tensor([trainer]) - torch.tensor([engine])
    found, limited = rollout_weights(kind, log_ratio, torch.ones_like(log_ratio), *pair)
    wanted = papers.weights(kind, trainer, engine, bounds)
    # An error of the logarithm is one of the ratio, relative: up to twelve differences of numbers up to 12.
    assert found[0].tolist() == pytest.approx(wanted, rel=12 * 12 * ROUNDING, abs=1e-30)
    low = bounds[0] if kind == "icepop" else 0
    beyond = [not low <= math.exp(value) <= bounds[-1] for value in papers.decisive(kind, trainer, engine)]
    assert limited[0].tolist() == beyond * (len(tokens) // len(beyond))


@given(st.sampled_from(papers.KINDS), st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=20))
@example("seq-mis", [1e4] * 20)
@example("icepop", [1e4, -1e4])
def test_weights_are_finite_and_at_most_the_upper_bound(kind, log_ratios):
    log_ratio = torch.tensor([log_ratios])
    weights, _ = rollout_weights(kind, log_ratio, torch.ones_like(log_ratio), 0.5, 5.0)
    assert weights.isfinite().all()
    assert ((weights >= 0) & (weights <= 5)).all()


def test_tis_truncates_above_only():
    """Where OpenRLHF's raises a weight to the lower threshold."""
    weights, limited = rollout_weights("tis", torch.tensor([[-3.0, 0.0, 3.0]]), torch.ones(1, 3), 0.5, 2.0)
    assert weights.tolist() == [[pytest.approx(math.exp(-3)), 1.0, 2.0]]
    assert limited.tolist() == [[False, False, True]]


def test_seq_mis_masks_a_response_that_a_geometric_mean_lets_pass():
    """Ten tokens of 0.1 nats each: a ratio of e for the response, and of 1.1 for the geometric mean."""
    weights, limited = rollout_weights("seq-mis", torch.full((1, 10), 0.1), torch.ones(1, 10), 0.5, 2.0)
    assert weights.eq(0).all() and limited.all()


@pytest.mark.parametrize("kind", papers.KINDS)
def test_tokens_outside_the_mask_have_no_say(kind):
    log_ratio = torch.tensor([[0.1, float("inf"), -0.2], [0.1, float("nan"), -0.2]])
    mask = torch.tensor([[1, 0, 1]] * 2)
    weights, limited = rollout_weights(kind, log_ratio, mask, 0.5, 5.0)
    alone, _ = rollout_weights(kind, torch.tensor([[0.1, -0.2]]), torch.ones(1, 2), 0.5, 5.0)
    assert weights[:, [0, 2]].tolist() == alone.tolist() * 2
    assert weights.isfinite().all() and not limited.any()


REWARD = st.floats(-5, 5, width=32)
ESTIMATORS = ("group_norm", "rloo", "dr_grpo", "reinforce_baseline")


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("samples", [2, 4, 8, 16])
def test_groups_without_variance_have_no_advantage(estimator, samples):
    """Every reward k/1000: the mean of eight of them differs from 938 by float32's rounding."""
    rewards = (torch.arange(-1000, 1001) / 1000).unsqueeze(1).expand(-1, samples)
    assert group_advantages(rewards, estimator).eq(0).all()


@settings(max_examples=300)
@given(st.lists(REWARD, min_size=2, max_size=16), st.lists(REWARD, min_size=1, max_size=3))
@example([0.1] * 7 + [math.nextafter(0.1, 1)], [0.0])
def test_group_norm_is_the_papers_and_no_rounding_is_blown_up(rewards, others):
    groups = torch.tensor([rewards, *([other] * len(rewards) for other in others)])
    found = group_advantages(groups, "group_norm")
    assert found[1:].eq(0).all()
    exact = groups[0].double().tolist()
    if max(exact) == min(exact):
        assert found[0].eq(0).all()
        return
    # The mean is off by a few spacings at the largest reward; divided by the deviation, that is the result's error.
    scale = max(map(abs, exact))
    deviation = torch.tensor(exact).double().std().item()
    error = 16 * ROUNDING * (scale / (deviation + GROUP_EPSILON) + 1)
    assert found[0].tolist() == pytest.approx(papers.group_norm(exact, GROUP_EPSILON), rel=0.01, abs=error)
    # Upstream's 1e-9 gives up to 119 for rewards of one spacing's difference; a z-score cannot exceed this.
    assert found.abs().max() <= (len(rewards) - 1) / math.sqrt(len(rewards)) + error


@given(st.lists(REWARD, min_size=2, max_size=8), st.sampled_from(["rloo", "dr_grpo", "reinforce_baseline"]))
def test_other_groups_are_rewards_over_their_baseline(rewards, estimator):
    found = group_advantages(torch.tensor([rewards]), estimator)[0].tolist()
    total, count = math.fsum(rewards), len(rewards)
    baselines = [(total - r) / (count - 1) if estimator == "rloo" else total / count for r in rewards]
    wanted = [reward - baseline for reward, baseline in zip(rewards, baselines, strict=True)]
    assert found == pytest.approx(wanted, abs=16 * count * ROUNDING * max(map(abs, [*rewards, 1e-30])))


def test_estimators_without_a_group_keep_their_rewards():
    rewards = torch.tensor([[0.5, 0.25]])
    assert group_advantages(rewards, "reinforce") is rewards


@settings(max_examples=300)
@given(st.floats(-19.5, 60, width=32))
def test_k3_and_its_gradient_are_schulmans(log_ratio):
    log_probs = torch.tensor([log_ratio], requires_grad=True)
    kl = approx_kl(log_probs, torch.zeros(1), "k3")
    kl.backward()
    value, slope = papers.k3(log_ratio)
    size = math.exp(-log_ratio) + abs(log_ratio) + 1  # of the terms that are added
    assert kl.item() == pytest.approx(value, abs=8 * ROUNDING * size)
    assert log_probs.grad.item() == pytest.approx(slope, abs=8 * ROUNDING * size)
    assert kl.item() >= -ROUNDING * size


@given(st.floats(-1e4, -20, width=32))
def test_k3_goes_on_as_its_tangent_where_the_ratio_would_overflow(log_ratio):
    log_probs = torch.tensor([log_ratio], requires_grad=True)
    kl = approx_kl(log_probs, torch.zeros(1), "k3")
    kl.backward()
    value, slope = papers.k3(-20.0)
    assert log_probs.grad.item() == pytest.approx(slope, rel=8 * ROUNDING)
    assert kl.item() == pytest.approx(value + slope * (log_ratio + 20), rel=64 * ROUNDING)


@pytest.mark.parametrize(("estimator", "slope"), [("k1", 1.0), ("k2", -12.0)])
def test_the_other_estimators_have_no_dead_zone_either(estimator, slope):
    log_probs = torch.tensor([-12.0], requires_grad=True)
    approx_kl(log_probs, torch.zeros(1), estimator).backward()
    assert log_probs.grad.item() == slope


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_penalty_in_the_reward_stays_within_ten_nats(estimator):
    log_probs = torch.tensor([-100.0, -12.0, -1.0, 0.0, 12.0, 100.0])
    kl = approx_kl(log_probs, torch.zeros(6), estimator)
    assert kl.abs().max() == 10
    assert approx_kl(log_probs[3:4], torch.zeros(1), estimator) == 0


CORRECTED = "--enable_vllm_is_correction --vllm_is_correction_type"


def test_corrections_have_their_usual_bounds_unless_told():
    found = {kind: correction_bounds(options(f"{CORRECTED} {kind}")) for kind in CORRECTIONS}
    assert found == {"tis": (0, 2), "token-mis": (0, 2), "seq-mis": (0, 2), "icepop": (0.5, 5)}
    assert correction_bounds(options(f"{CORRECTED} tis --vllm_is_bounds 3")) == (0, 3)
    assert correction_bounds(options(f"{CORRECTED} icepop --vllm_is_bounds 0.2 4")) == (0.2, 4)
    assert options("--policy_loss_type gspo --enable_vllm_is_correction").policy_loss_type == "gspo"


@pytest.mark.parametrize(
    ("text", "found", "repair"),
    [
        ("--vllm_is_correction_type mis", "found mis (OpenRLHF's filters by a geometric mean", "seq-mis"),
        (f"{CORRECTED} seq-mask-tis", "found seq-mask-tis", "token-mis"),
        (f"{CORRECTED} tis --vllm_is_truncated_threshold 0.5 5", "only icepop has two", "--vllm_is_bounds 5"),
        (f"{CORRECTED} icepop --vllm_is_truncated_threshold 0.5 5", "bounds C (tis,", "--vllm_is_bounds 0.5 5"),
        ("--vllm_is_correction_type icepop", "a correction that is off", "--enable_vllm_is_correction"),
        ("--vllm_is_bounds 3", "a correction that is off", "--enable_vllm_is_correction"),
        (f"{CORRECTED} tis --vllm_is_bounds 0.5 5", "of tis: found 0.5 5", "--vllm_is_bounds 2"),
        (f"{CORRECTED} seq-mis --vllm_is_bounds 0.5", "the cap C >= 1", "--vllm_is_bounds 2"),
        (f"{CORRECTED} icepop --vllm_is_bounds 5", "LOW HIGH with 0 <= LOW <= 1 <= HIGH", "--vllm_is_bounds 0.5 5"),
        (f"{CORRECTED} icepop --vllm_is_bounds 2 5", "of icepop: found 2 5", "--vllm_is_bounds 0.5 5"),
        (f"--policy_loss_type gspo {CORRECTED} icepop", "gspo has no weights", "--policy_loss_type ppo"),
        ("--policy_loss_type gspo --loss_normalization batch", "gspo's loss is a mean over sequences", "out"),
        ("--policy_loss_type gspo --mask_truncated", "a mean over tokens", "leave --mask_truncated out"),
        ("--agent_func_path agent.py --advantage_estimator reinforce --gamma 0.9", "--gamma 0.9", "1 is the default"),
        ("--agent_func_path agent.py --advantage_estimator gae --lambd 0.95", "wanted: --lambd 1", "1 is the default"),
        ("--advantage_estimator dr_grpo --n_samples_per_prompt 1", "no advantage at all", "--n_samples_per_prompt 8"),
    ],
)  # fmt: skip
def test_losses_that_do_not_mean_what_they_say_are_refused(text, found, repair):
    with pytest.raises(ValueError) as refusal:
        options(text)
    assert found in str(refusal.value)
    assert repair in str(refusal.value).splitlines()[-1]


def test_cut_samples_of_an_agent_can_be_masked_where_the_agent_says_that_they_were_cut(tmp_path):
    agent = tmp_path / "agent.py"
    words = f"--agent_func_path {agent} --mask_truncated"
    agent.write_text("class AgentExecutor: pass\n")
    with pytest.raises(ValueError, match="this agent's say nothing") as refusal:
        options(words)
    assert str(refusal.value).splitlines()[-1].strip() == "repair: leave --mask_truncated out"
    for source in (
        "from rft.agents.executor import SearchExecutor as AgentExecutor\n",
        "class AgentExecutor: truncated = 1\n",
    ):
        agent.write_text(source)
        assert options(words).mask_truncated
    ours = Path(__file__).parents[2] / "agents" / "agent_func_search.py"
    assert options(f"--agent_func_path {ours} --mask_truncated").mask_truncated
    agent.unlink()  # it may lie on the engines' machine alone
    assert options(words).mask_truncated
    assert options(f"{words} --advantage_estimator group_norm --gamma 0.9").gamma == 0.9  # OpenRLHF takes 1
