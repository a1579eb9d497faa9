"""With every gate off and LoRA unused, the patched OpenRLHF trains as upstream's, bit for bit.

Upstream's tree has no patch but those without which it does not run on a CPU at all. Both train the whole of a small
dense model for six updates in three rollouts: discounted returns, the ratio of a policy that has moved, KL to a
reference model, entropy. Rollouts are of one prompt and leave the sampler no choice (top-p next to 0): upstream draws
from a generator whose order depends on timing, shuffles prompts by chance, and takes them as they finish.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from shadow import SERIES, make_shadow, run_in_shadow

ROOT = Path(__file__).resolve().parents[2]
IN_BOTH = {
    "accelerator-device-calls.patch",  # upstream asks torch.cuda
    "full-sync-without-nccl.patch",  # upstream sends nothing
    "optional-flash-attn.patch",  # upstream imports it
    "collectives-on-cpu.patch",  # DeepSpeed compiles for a process group; a single rank has nothing to add or gather
    "adam-without-compiler.patch",  # and its Adam: that torch's is AdamW too shows tests/unit/test_optimizer.py
    "rotary-in-float32.patch",  # upstream's model is another one than its engine's
}
OPTIONS = ["--lora_rank", "0", "--top_p", "1e-6", "--actor_learning_rate", "1e-3", "--lr_warmup_ratio", "0"]
OPTIONS += ["--max_samples", "1", "--num_episodes", "3", "--rollout_batch_size", "1", "--micro_rollout_batch_size", "8"]
OPTIONS += ["--n_samples_per_prompt", "8", "--train_batch_size", "4", "--micro_train_batch_size", "2"]
# Equal samples have no advantage over each other: the discount makes one of their places.
OPTIONS += ["--advantage_estimator", "reinforce", "--gamma", "0.9", "--vllm_sync_backend", "gloo"]
OPTIONS += ["--ref_num_gpus_per_node", "1", "--init_kl_coef", "0.01", "--use_kl_loss", "--kl_estimator", "k3"]
OPTIONS += ["--entropy_loss_coef", "0.01"]
REWARD = """
import torch

def reward_func(queries, prompts, labels):
    return {"rewards": torch.tensor([float(len(query)) for query in queries])}
"""


def logged_steps(log: str) -> list[dict]:
    """The metrics that OpenRLHF's trainer prints after each step."""
    lines = [line.split(": ", 1)[1] for line in log.splitlines() if "Global step " in line]
    return [eval(line, {"__builtins__": {}, "nan": float("nan")}) for line in lines]


@pytest.fixture(scope="module")
def dense_checkpoint(tmp_path_factory):
    from tiny_dense import make_dense_checkpoint

    return make_dense_checkpoint(tmp_path_factory.mktemp("dense"))


def test_patched_equals_pristine_bit_for_bit(dense_checkpoint, tmp_path):
    series = (ROOT / "patches" / SERIES["openrlhf"] / "series").read_text().split()
    assert set(series) >= IN_BOTH
    in_both = IN_BOTH | {"two-lengths.patch"}  # of 0.9.10 alone, which has other options
    place, also = make_shadow(tmp_path / "pristine", {SERIES["openrlhf"]: set(series) - in_both})
    assert also == []
    (tmp_path / "reward.py").write_text(REWARD)
    options = [*OPTIONS, "--remote_rm_url", str(tmp_path / "reward.py")]
    script = ["tests/stack/train_direct.py", str(tmp_path / "run"), str(dense_checkpoint), *options]
    stock = run_in_shadow(place, script, timeout=1500)
    assert stock.returncode == 0, stock.stdout[-4000:]
    import direct

    gates = ["--rollout_seeds", "engine", "--head_dtype", "model"]
    ours = direct.train(tmp_path / "ours", dense_checkpoint, *options, *gates)
    wanted, found = logged_steps(stock.stdout), logged_steps(ours)
    assert len(wanted) == len(found) == 3
    names = {name for name in wanted[0] if not name.startswith("timing/")}
    if names < wanted[0].keys():  # 0.9.10: the last gradient norm and rate of a step, where ours are means
        names -= {"actor_grad_norm", "actor_lr"}
    assert {"policy_loss", "kl", "entropy_loss", "reward", "response_length", "return"} <= names
    for step, (expected, record) in enumerate(zip(wanted, found, strict=True)):
        # Upstream's means of float32 means, and ours over tokens and samples, which of equal samples are the same.
        assert {name: record[name] for name in names} == pytest.approx(
            {name: expected[name] for name in names}, rel=1e-6
        ), f"step {step + 1}"
        # Zeros would be equal whatever computes them.
        assert record["grad_norm"] > 0 and expected["policy_loss"] != 0 and expected["ppo_kl"] != 0
    assert wanted[-1]["kl"] != 0 and len({expected["policy_loss"] for expected in wanted}) == 3
    assert "grad_norm" not in wanted[0]
    trained = [load_file(tmp_path / run / "saved" / "model.safetensors") for run in ("run", "ours")]
    assert trained[0].keys() == trained[1].keys()
    assert [name for name, tensor in trained[0].items() if not torch.equal(tensor, trained[1][name])] == []
    started = load_file(dense_checkpoint / "model.safetensors")
    assert any(not torch.equal(tensor, trained[0][name]) for name, tensor in started.items())
