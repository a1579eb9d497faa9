"""Probes of the resident actor behind OpenRLHF's `Actor`."""

import torch
from openrlhf.models import Actor

LORA = {"lora_rank": 8, "lora_alpha": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}


def padded() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two samples with padding on either side and inside the actions: tokens, attention and action masks."""
    tokens = torch.randint(5, 60, (2, 40), generator=torch.Generator().manual_seed(0))
    attention = torch.ones_like(tokens)
    attention[0, :6] = attention[0, 34:] = attention[1, 38:] = 0
    actions = torch.ones(2, 20)
    actions[0, 14:] = actions[1, 18:] = actions[1, 3] = 0
    return tokens, attention, actions


def test_actor_keeps_experts_packed(checkpoint):
    """Experts are the checkpoint's bytes, and a padded batch gives what transformers' bf16 model gives, up to bf16."""
    tokens, attention, actions = padded()
    resident, eager = (
        Actor(str(checkpoint), attn_implementation="eager", head_dtype="float32", temperature=0.8, actor=which, **LORA)
        for which in ("resident", "eager")
    )
    buffers = [tensor for name, tensor in resident.model.named_buffers() if name.endswith("_blocks")]
    assert len(buffers) == 4 and all(tensor.dtype == torch.uint8 for tensor in buffers)
    call = {"attention_mask": attention, "return_output": True, "return_entropy": True}
    ours, output = resident(tokens, actions, **call)
    theirs, wanted = eager(tokens, actions, **call)
    assert ours.dtype == torch.float32 and torch.equal(ours == 0, actions == 0)
    # Two layers of bf16, each some roundings of 2^-9 of values near 1; another path of the experts moves some more.
    assert (ours - theirs).abs().max() < 0.1 and (ours - theirs).abs().mean() < 0.02
    entropy = wanted.entropy[:, -20:] * actions
    assert (output.entropy - entropy).abs().max() < 0.1
    assert not output.entropy.requires_grad and ours.requires_grad
