"""Rotary frequencies survive a cast of their model."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from rft.hooks import rotary

SCALED = [
    {"rope_type": "default"},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 64},
]  # fmt: skip


def model_with(**rope_scaling) -> torch.nn.Module:
    config = LlamaConfig(hidden_size=64, num_attention_heads=2, max_position_embeddings=64, rope_scaling=rope_scaling)
    return torch.nn.ModuleDict({"rotary": LlamaRotaryEmbedding(config), "linear": torch.nn.Linear(2, 2)})


@pytest.mark.parametrize("scaling", SCALED, ids=lambda scaling: scaling["rope_type"])
def test_a_cast_model_turns_by_the_same_angles(scaling):
    model = model_with(**scaling)
    before, keys = model["rotary"].inv_freq.clone(), model.state_dict().keys()
    positions, inputs = torch.arange(40)[None], torch.zeros(1)
    wanted = model["rotary"](inputs, positions)
    assert rotary.cast(model, torch.bfloat16) is model
    assert model["linear"].weight.dtype == torch.bfloat16
    assert model["rotary"].inv_freq.dtype == torch.float32
    assert torch.equal(model["rotary"].inv_freq, before)
    assert all(torch.equal(*pair) for pair in zip(model["rotary"](inputs, positions), wanted, strict=True))
    assert model.state_dict().keys() == keys  # the buffer is as little a part of the checkpoint as before


def test_frequencies_that_were_rounded_before_are_computed_anew():
    """As under ZeRO-3, where the ramp of YaRN is made in bf16."""
    model, wanted = model_with(**SCALED[1]), model_with(**SCALED[1])["rotary"].inv_freq
    for name in ("inv_freq", "original_inv_freq"):
        setattr(model["rotary"], name, wanted.bfloat16())
    rotary.cast(model, torch.bfloat16)
    assert torch.equal(model["rotary"].inv_freq, wanted)
    assert torch.equal(model["rotary"].original_inv_freq, wanted)


def test_a_module_of_another_kind_keeps_its_float32_buffer():
    modules = torch.nn.ModuleList([torch.nn.Module(), torch.nn.Module()])
    values = torch.rand(8)
    modules[0].register_buffer("inv_freq", values, persistent=False)
    modules[1].register_buffer("inv_freq", values.half())
    rotary.cast(modules, torch.bfloat16)
    assert torch.equal(modules[0].inv_freq, values)
    assert modules[1].inv_freq.dtype == torch.bfloat16  # nobody knows more of it than 16 bits


def test_preparing_returns_what_the_method_returns():
    models = []

    class Strategy:
        @rotary.kept_in_float32
        def prepare(self, model, *rest):
            models.append(model)
            return (model and model.bfloat16(), *rest)

    model = model_with(rope_type="default")
    assert Strategy().prepare(model, 1, 2) == (model, 1, 2)
    assert model["rotary"].inv_freq.dtype == torch.float32
    assert Strategy().prepare(None) == (None,)
    assert models == [model, None]
