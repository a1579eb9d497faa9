"""A training that starts from a saved adapter: policy, reference and base of the trainer, the engine's first answer."""

import pytest
import tiny_adapter
import torch
from ranks import run_ranks
from safetensors.torch import load_file

pytestmark = pytest.mark.stack
CASES = ("0:eager", "1:resident", "2:eager", "2:resident", "3:eager", "3:resident")  # ZeRO stage, actor


@pytest.fixture(scope="module")
def init_adapter(checkpoint, tmp_path_factory):
    """A PEFT folder over the untrained checkpoint, as an earlier training leaves it."""
    return tiny_adapter.save(tmp_path_factory.mktemp("init") / "adapter", checkpoint)


def test_policy_reference_and_base_are_pefts(checkpoint, init_adapter, tmp_path):
    """Log-probabilities of the trainer's three policies, at the start and after a step, at each ZeRO stage."""
    from openrlhf.models import actor

    assert hasattr(actor, "init_adapter")
    import float32_truth
    from init_adapter_checks import ACTIONS, PROMPT, tokens

    run_ranks("init_adapter_checks.py", 1, checkpoint, init_adapter, tmp_path / "seen", *CASES)
    found = load_file(tmp_path / "seen")
    ids = tokens()[0].tolist()
    exact = float32_truth.truth(init_adapter, [(ids[:PROMPT], ids[PROMPT:])])
    rounding = float32_truth.farthest(exact.log_prob_error)
    saved = load_file(init_adapter / "adapter_model.safetensors")
    for case in CASES:
        start, trained = (
            {name: found[f"{case}.{moment}.{name}"] for name in ("policy", "reference", "off", "again")}
            for moment in ("start", "trained")
        )
        assert torch.equal(start["policy"], start["reference"]) and torch.equal(start["policy"], start["again"])
        assert torch.equal(trained["reference"], start["reference"])
        assert torch.equal(trained["policy"], trained["again"])
        assert torch.equal(start["off"], found[f"{case}.base"]) and torch.equal(trained["off"], start["off"])
        error, of_base = (
            (start[name][0, -ACTIONS:].double() - exact.log_prob).abs().mean() for name in ("reference", "off")
        )
        print(f"{case}: mean distance from PEFT in float32: {error:.2g} nats; bf16 {rounding:.2g}, base {of_base:.2g}")
        assert error < rounding < of_base / 10
        assert not torch.equal(trained["policy"], start["policy"])
        folder = tmp_path / "seen.d" / case.replace(":", ".")
        assert not any(path.is_dir() for path in folder.iterdir())
        kept = load_file(folder / "adapter_model.safetensors")
        assert kept.keys() == saved.keys() and all(not torch.equal(kept[name], saved[name]) for name in saved)
