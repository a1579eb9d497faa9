"""One probe a patch: each fails when the patched lines are not the ones that run."""

import importlib.util
import types

import pytest
import torch
from deepspeed.accelerator import get_accelerator
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from rft.mxfp4 import decode


def test_device_calls_follow_the_accelerator():
    from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

    buffer = NaiveReplayBuffer(sample_batch_size=1)
    assert buffer.target_device == torch.device(get_accelerator().current_device_name())


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="flash-attn is installed")
def test_missing_flash_attn_is_named_when_called():
    from openrlhf.models import ring_attn_utils

    with pytest.raises(ModuleNotFoundError, match=r"flash_attn is not installed, and --packing_samples needs it"):
        ring_attn_utils.unpad_input(torch.zeros(1, 1), torch.ones(1, 1))


def lora_model() -> torch.nn.Module:
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    return get_peft_model(layer, LoraConfig(r=2, target_modules=["0"]))


def test_lora_optimizer_has_no_empty_group():
    from openrlhf.utils.deepspeed.deepspeed_utils import get_optimizer_grouped_parameters

    groups = get_optimizer_grouped_parameters(lora_model(), weight_decay=0.0)
    assert [len(group["params"]) for group in groups] == [2]


def test_cpu_optimizer_needs_no_compiler():
    from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy

    strategy = types.SimpleNamespace(adam_offload=True)
    optimizer = DeepspeedStrategy.create_optimizer(strategy, lora_model(), lr=1e-3, weight_decay=0.0)
    assert type(optimizer) is torch.optim.AdamW


def test_actor_loads_mxfp4_bit_exact(checkpoint):
    from openrlhf.models import Actor

    actor = Actor(
        str(checkpoint), attn_implementation="eager", lora_rank=4, target_modules=["q_proj"],
        ds_config={"zero_optimization": {"stage": 3}},
    )  # fmt: skip
    held = {name: p for name, p in actor.model.named_parameters() if "experts" in name and name.endswith("_proj")}
    stored = load_file(checkpoint / "model.safetensors")
    assert len(held) == 4
    for name, parameter in held.items():
        key = name.removeprefix("base_model.model.")
        assert parameter.dtype == torch.bfloat16
        assert not parameter.requires_grad
        assert torch.equal(parameter.data, decode(stored[f"{key}_blocks"], stored[f"{key}_scales"]))


def response(extra_logs: dict) -> dict:
    return {
        "prompt": "p", "label": "1", "observation_tokens": [1, 2, 3], "action_ranges": [(1, 3)], "reward": 1.0,
        "scores": 1.0, "rollout_log_probs": None, "truncated": False, "extra_logs": extra_logs,
    }  # fmt: skip


def test_extra_logs_keep_numbers_only():
    from openrlhf.trainer.ppo_utils.experience_maker import SamplesGenerator

    logs = {"good": torch.tensor([0.5]), "flag": True, "text": "boxed", "nothing": None, "bad": float("nan")}
    experience = SamplesGenerator._process_response_into_experience(None, response(logs))
    assert experience.info["good"].tolist() == [0.5]
    assert experience.info["flag"].tolist() == [1.0]
    assert "text" not in experience.info
    # Keys must not depend on the sample: a batch is merged by the keys of its first.
    assert experience.info["nothing"].isnan().all()
    assert experience.info["bad"].isnan().all()


def test_evaluation_draws_its_own_number_of_samples(monkeypatch):
    from openrlhf.trainer.ppo_utils.experience_maker import SamplesGenerator

    asked = []
    engine = types.SimpleNamespace(
        get_num_unfinished_requests=types.SimpleNamespace(remote=lambda: 0),
        generate_responses=types.SimpleNamespace(remote=lambda **call: asked.append(call["num_samples"])),
    )
    generator = object.__new__(SamplesGenerator)
    generator.args = types.SimpleNamespace(enable_vllm_is_correction=False, n_samples_per_prompt=8)
    generator.vllm_engines, generator.tokenizer = [engine], None
    monkeypatch.setattr("ray.get", list)
    generator._dispatch_prompts_to_vllm(["a", "b"], ["1", "2"], n_samples_per_prompt=1)
    generator._dispatch_prompts_to_vllm(["c"], ["3"])
    assert asked == [1, 1, 8]
