"""With every gate off and LoRA unused, the patched OpenRLHF trains as upstream's, bit for bit.

Upstream needs a few patches to run on a CPU at all, and one to run twice alike; both trees have those. Rollouts are of
one prompt and leave the sampler no choice (top-p next to 0): upstream draws from a generator whose order depends on
timing, and takes prompts as they finish.
"""

from pathlib import Path

import pytest
from shadow import make_shadow, run_in_shadow

ROOT = Path(__file__).resolve().parents[2]
IN_BOTH = {
    "accelerator-device-calls.patch",
    "optional-flash-attn.patch",
    "skip-empty-optimizer-groups.patch",  # torch 2.10's schedulers
    "adam-without-compiler.patch",
    "collectives-on-cpu.patch",
    "zero-learning-rate.patch",  # the same floor, reached by another rounding
    "prompt-order-from-seed.patch",  # upstream's order is chance
    "rotary-in-float32.patch",  # upstream's model is another one than its engine's
}
OPTIONS = ["--lora_rank", "0", "--top_p", "1e-6", "--actor_learning_rate", "1e-3", "--lr_warmup_ratio", "0"]
OPTIONS += ["--n_samples_per_prompt", "8", "--advantage_estimator", "reinforce", "--vllm_sync_backend", "gloo"]
OPTIONS += ["--max_samples", "3", "--rollout_batch_size", "1", "--micro_rollout_batch_size", "8"]
OPTIONS += ["--train_batch_size", "8", "--micro_train_batch_size", "4"]


def logged_steps(log: str) -> list[dict]:
    """The metrics that OpenRLHF's trainer prints after each step."""
    lines = [line.split(": ", 1)[1] for line in log.splitlines() if "Global step " in line]
    return [eval(line, {"__builtins__": {}, "nan": float("nan")}) for line in lines]


@pytest.fixture(scope="module")
def dense_checkpoint(tmp_path_factory):
    from tiny_dense import make_dense_checkpoint

    return make_dense_checkpoint(tmp_path_factory.mktemp("dense"))


def test_patched_equals_pristine_bit_for_bit(dense_checkpoint, tmp_path):
    series = (ROOT / "patches" / "openrlhf-0.9.3" / "series").read_text().split()
    place, also = make_shadow(tmp_path / "pristine", {"openrlhf-0.9.3": set(series) - IN_BOTH})
    assert also == []
    script = ["tests/stack/train_direct.py", str(tmp_path / "run"), str(dense_checkpoint), *OPTIONS]
    stock = run_in_shadow(place, script, timeout=1500)
    assert stock.returncode == 0, stock.stdout[-4000:]
    import direct

    gates = ["--rollout_seeds", "engine", "--head_dtype", "model"]
    ours = direct.train(tmp_path / "ours", dense_checkpoint, *OPTIONS, *gates)
    wanted, found = logged_steps(stock.stdout), logged_steps(ours)
    assert len(wanted) == len(found) == 3
    names = wanted[0].keys()
    assert {"policy_loss", "reward", "response_length", "actor_lr", "ppo_kl", "return"} <= names
    for step, (expected, record) in enumerate(zip(wanted, found, strict=True)):
        differing = {name: (expected[name], record[name]) for name in names if expected[name] != record[name]}
        assert differing == {}, f"step {step + 1}"
    assert "grad_norm" in found[0]
    assert "grad_norm" not in wanted[0]
