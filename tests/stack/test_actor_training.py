"""What the gates of the loss do to a real training step, and what the adapter's switch gives."""

import json
from functools import cache

import pytest
import torch
from ranks import run_ranks
from safetensors.torch import load_file

pytestmark = pytest.mark.stack


def gradients(checkpoint, path, ranks: int, *shapes: str) -> dict[str, torch.Tensor]:
    """MICRO_BATCH:NORMALIZATION -> the whole gradient, shape (adapter elements,), float32."""
    run_ranks("actor_checks.py", ranks, checkpoint, path, "gradient", *shapes)
    return load_file(path)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def test_gradient_does_not_depend_on_the_split(checkpoint, tmp_path):
    """Four samples of 4 to 40 tokens, as one micro-batch and as four; once on two ranks."""
    one = gradients(checkpoint, tmp_path / "one.safetensors", 1, "4:batch", "1:batch", "1:micro_batch")
    two = gradients(checkpoint, tmp_path / "two.safetensors", 2, "1:batch")
    found = {"split": one["1:batch"], "ranks": two["1:batch"], "stock_split": one["1:micro_batch"]}
    distances = {name: distance(gradient, one["4:batch"]) for name, gradient in found.items()}
    print("relative distance of the gradient from that of one micro-batch:", distances)
    assert distances["split"] < 0.02  # bf16 accumulation
    assert distances["ranks"] < 0.02
    assert distances["stock_split"] > 0.1


def test_micro_batches_by_tokens_add_up_below_zero_3(checkpoint, tmp_path):
    """Three micro-batches of at most 49 tokens, against one sample each and a fixed number of them."""
    cases = ("2:0", "0:49", "1:49", "2:49", "3:49")
    run_ranks("actor_checks.py", 1, checkpoint, tmp_path / "gradients", "stages", *cases)
    found = load_file(tmp_path / "gradients")
    distances = {case: distance(found[case], found["2:0"]) for case in cases}
    print("relative distance of the gradient from that of a fixed number of micro-batches:", distances)
    assert max(distances.values()) < 0.02  # bf16 accumulation


# Samples of 13, 49, 18 and 34 tokens: 0 stands for one a micro-batch. On two ranks a budget of 49 makes 49 and 34 + 13
# of the first two micro-batches, and one of 18 that a fourth one is cut off for.
BUDGETS = {1: ("0", "49", "67", "114"), 2: ("49", "114")}


@pytest.fixture(scope="module")
def packings(checkpoint, tmp_path_factory):
    """A function of the ranks: a step of the same samples with each of `BUDGETS`, its gradient and its status."""
    path = tmp_path_factory.mktemp("packings")

    @cache
    def run(ranks: int) -> tuple[dict[str, torch.Tensor], dict[str, dict]]:
        from openrlhf.trainer.ppo_utils import replay_buffer

        assert hasattr(replay_buffer, "token_batches")
        out = path / f"{ranks}.safetensors"
        run_ranks("actor_checks.py", ranks, checkpoint, out, "packing", *BUDGETS[ranks])
        return load_file(out), json.loads(out.with_suffix(".json").read_text())

    return run


def test_gradient_does_not_depend_on_the_packing(packings):
    """In float32 the gradient of every packing, also on two ranks, is that of one sequence at a time."""
    alone = packings(1)[0]["0"]
    distances = {
        (ranks, budget): distance(packings(ranks)[0][budget], alone) for ranks in BUDGETS for budget in BUDGETS[ranks]
    }
    print("relative distance of the gradient from that of one sequence at a time:", distances)
    assert max(distances.values()) < 1e-5  # 2^-24 a rounding, of sums of some hundreds of terms


def test_status_does_not_depend_on_the_packing(packings):
    """Means over tokens and over samples, whatever the micro-batches and ranks."""
    alone = packings(1)[1]["0"]
    lengths = torch.tensor([4.0, 40, 9, 25])
    kl = (lengths * torch.tensor([0.0, 0.1, 0.2, 0.3])).sum() / lengths.sum()
    assert alone["kl"] == pytest.approx(kl.item()) and alone["reward"] == 1.5
    assert alone["response_length"] == 19.5 and alone["tokens_in_batch"] == 78
    for ranks, budgets in BUDGETS.items():
        for budget in budgets:
            found = packings(ranks)[1][budget]
            assert found == pytest.approx(alone, rel=1e-4, abs=1e-6), (ranks, budget)


def test_masked_answers_leave_the_loss(checkpoint, tmp_path):
    """Two of four answers masked, one of them alone in its micro-batch or beside others: the gradient of the others."""
    out, masked = tmp_path / "gradients", ("0:masked", "49:masked", "114:masked")
    run_ranks("actor_checks.py", 1, checkpoint, out, "cut", "0:absent", *masked, "0:all")
    found, status = load_file(out), json.loads(out.with_suffix(".json").read_text())
    distances = {case: distance(found[case], found["0:absent"]) for case in masked}
    print("relative distance of the gradient from that of the other answers alone:", distances)
    assert max(distances.values()) < 1e-5  # 2^-24 a rounding, of sums of some hundreds of terms
    of_tokens = ("policy_loss", "entropy_loss", "kl", "ppo_kl", "tokens_in_batch")
    for case in masked:
        wanted = {name: status["0:absent"][name] for name in of_tokens}
        assert {name: status[case][name] for name in of_tokens} == pytest.approx(wanted, rel=1e-4, abs=1e-6)
        assert status[case]["truncated"] == 0.5 and status[case]["response_length"] == 19.5
    assert not found["0:all"].any() and status["0:all"]["grad_norm"] == 0
    assert "policy_loss" not in status["0:all"] and status["0:all"]["truncated"] == 1


@pytest.mark.parametrize(("kind", "share"), [("tis", "truncated"), ("token-mis", "masked"), ("seq-mis", "masked")])
def test_correction_reaches_the_loss_and_the_metrics(checkpoint, tmp_path, kind, share):
    run_ranks("actor_checks.py", 1, checkpoint, tmp_path / "seen", "correction", kind, 1.1)
    seen = json.loads((tmp_path / "seen").read_text())
    assert 0 < seen["wanted"]["limited_share"] < 1
    assert seen["logged"]["correction_weight_mean"] == pytest.approx(seen["wanted"]["weight_mean"], rel=1e-5)
    assert seen["logged"][f"correction_{share}_share"] == pytest.approx(seen["wanted"]["limited_share"], rel=1e-6)


def test_on_policy_ratio_is_one(checkpoint, tmp_path):
    found = {}
    for switch in ("off", "on"):
        run_ranks("actor_checks.py", 1, checkpoint, tmp_path / switch, "ratio", switch)
        found[switch] = json.loads((tmp_path / switch).read_text())
    assert found["off"]["log_ratio_abs_p99"] > 0.1
    for name in ("log_ratio_max", "log_ratio_min", "log_ratio_raw_max", "ppo_kl", "ppo_clip_ratio"):
        assert found["on"][name] == 0
    assert found["on"]["ratio_max"] == 1
    assert found["on"]["grad_norm"] > 0


def test_adapter_off_is_the_reference_model(checkpoint, tmp_path):
    from openrlhf.trainer.ray.ppo_actor import PolicyModelActor

    assert hasattr(PolicyModelActor.__ray_metadata__.modified_class, "reference_forward")
    run_ranks("actor_checks.py", 1, checkpoint, tmp_path / "seen", "reference")
    seen = load_file(tmp_path / "seen")
    for moment in ("before", "after"):
        assert torch.equal(seen[f"{moment}.off"], seen[f"{moment}.separate"])
        assert torch.equal(seen[f"{moment}.on"], seen[f"{moment}.on_again"])
        assert not torch.equal(seen[f"{moment}.on"], seen[f"{moment}.off"])
    assert torch.equal(seen["before.off"], seen["after.off"])
    assert not torch.equal(seen["before.on"], seen["after.on"])


def test_experts_compute_the_same_way_before_and_during_the_update(checkpoint, tmp_path):
    """Both passes take transformers' training path, which it chooses by the module's mode where there is a GPU."""
    run_ranks("actor_checks.py", 1, checkpoint, tmp_path / "modes", "modes")
    assert json.loads((tmp_path / "modes").read_text()) == {"forward": [True], "reference_forward": [True]}
