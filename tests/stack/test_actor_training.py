"""What the gates of the loss do to a real training step, and what the adapter's switch gives."""

import json

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


def test_dynamic_batches_add_up_below_zero_3(checkpoint, tmp_path):
    """One sample a micro-batch is the same whether the number of micro-batches is fixed or not."""
    cases = ("2:static", "1:dynamic", "2:dynamic", "3:dynamic")
    run_ranks("actor_checks.py", 1, checkpoint, tmp_path / "gradients", "dynamic", *cases)
    found = load_file(tmp_path / "gradients")
    distances = {case: distance(found[case], found["2:static"]) for case in cases}
    print("relative distance of the gradient from that of a fixed number of micro-batches:", distances)
    assert max(distances.values()) < 0.02  # bf16 accumulation


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
