"""Probes of the trainer's arithmetic: adapters with one rounding, logits in float32."""

import pytest
import torch
from openrlhf.models import Actor

from rft.hooks.kept_share import KeptShare
from rft.hooks.lora_sync import lora_layers

UPDATE, ROWS = 5e-7, 2048


@pytest.fixture(scope="module")
def actor(checkpoint):
    """OpenRLHF's actor in bf16 with an adapter, as DeepSpeed trains it."""
    found = Actor(
        str(checkpoint), attn_implementation="eager", lora_rank=8, lora_alpha=16,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], head_dtype="float32",
    )  # fmt: skip
    for parameter in found.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return found.eval()


@torch.no_grad()
def test_one_small_update_shows_in_the_layers_outputs(actor):
    """One update of 5e-7: half a million outputs change by a unit in the last place or not at all, and the mean is
    right. Their standard error is 3%; PEFT's own forward pass shows under 1%."""
    share = KeptShare()
    for index, (_, layer) in enumerate(lora_layers(actor.model)):
        generator = torch.Generator().manual_seed(index)
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        x = torch.randn(ROWS, a.shape[1], generator=generator).to(torch.bfloat16)
        off = layer(x)
        b.copy_(UPDATE * torch.randn(b.shape, generator=generator).sign())
        share.add(x, a * layer.scaling["default"], b, layer(x).float() - off.float())
        b.zero_()
    assert 0.85 < share.shares()[0] < 1.15


@torch.no_grad()
def test_logits_are_not_rounded_to_bf16(actor):
    tokens = torch.arange(5, 37).view(2, 16)
    logits = actor(tokens, attention_mask=torch.ones_like(tokens), return_output=True)["logits"]
    assert logits.dtype == torch.float32
    assert (logits != logits.bfloat16()).float().mean() > 0.9
