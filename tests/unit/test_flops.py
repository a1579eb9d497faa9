"""FLOPs of the real models against arithmetic by hand, and of a small one against torch's own count."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import GptOssConfig, GptOssForCausalLM

from benchmarks.checkpoint import PROJECTIONS, shape_config
from rft.record import flops

# TFLOP for one sequence of 4,096 tokens, all scored. By hand for 20b, 24 layers: 2 x 2,880 x (4,096 + 512) weights in
# q, k, v, o, four experts of 3 x 2,880 x 2,880; a head of 201,088 x 2,880; of 64 heads of 64 in 12 layers a token
# attends to all before it, in 12 to 128.
FORWARD = {
    "20b": {"projections": 5.2, "router": 0.0, "experts": 19.6, "attention": 1.8, "head": 4.7},
    "120b": {"projections": 7.8, "router": 0.1, "experts": 29.4, "attention": 2.6, "head": 4.7},
}


@pytest.mark.parametrize("shape", FORWARD)
def test_forward_of_the_real_models(shape):
    found = flops.forward(shape_config(shape), [4096], 4096)
    assert found.pop("adapters") == 0
    assert {name: round(count / 1e12, 1) for name, count in found.items()} == FORWARD[shape]


@pytest.mark.parametrize(
    ("shape", "billions"), [("20b", [0.637, 0.002, 2.389, 0.579]), ("120b", [0.956, 0.013, 3.583, 0.579])]
)
def test_active_parameters_of_the_real_models(shape, billions):
    found = flops.active_parameters(shape_config(shape))
    assert [round(found[name] / 1e9, 3) for name in ("projections", "router", "experts", "head")] == billions


def test_window_counts_the_token_itself():
    for length, window in ((1, 128), (5, 3), (3, 3), (7, None), (4, 9)):
        pairs = sum(min(place + 1, window or length) for place in range(length))
        assert flops.attended(length, window) == pairs


def test_parts_add_up_over_sequences():
    config = shape_config("20b")
    one, other = (flops.training(config, [n], 3, 8, PROJECTIONS) for n in (100, 700))
    both = flops.training(config, [100, 700], 6, 8, PROJECTIONS)
    assert both == {name: one[name] + other[name] for name in one}
    assert set(flops.forward(config, [], 0).values()) == {0}


def small() -> GptOssForCausalLM:
    torch.manual_seed(0)
    config = GptOssConfig(
        num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2, vocab_size=96, hidden_size=32, head_dim=16,
        intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, sliding_window=8,
        max_position_embeddings=64,
    )  # fmt: skip
    config._attn_implementation = config._experts_implementation = "eager"
    return GptOssForCausalLM(config).train()


@pytest.mark.parametrize("rank", [0, 4])
def test_torch_counts_the_same(rank):
    """Forward and backward of transformers' model; its eager attention computes masked pairs too."""
    from peft import LoraConfig, get_peft_model

    model, length = small(), 24
    config = model.config.to_dict()
    if rank:
        model = get_peft_model(model, LoraConfig(r=rank, target_modules=PROJECTIONS))
    inputs = model.get_input_embeddings()(torch.randint(96, (1, length))).detach().requires_grad_()
    with FlopCounterMode(display=False) as counter:
        logits = model(inputs_embeds=inputs).logits
        ahead = counter.get_total_flops()
        logits.logsumexp(-1).sum().backward()

    def wanted(count, passes: int) -> int:
        parts = count(config, [length], length, rank, PROJECTIONS)
        dense = 4 * 4 * 16 * length * length * 2  # two layers, every pair
        angles = 2 * 8 * length  # positions by inverse frequencies
        return sum(parts.values()) - parts["attention"] + passes * dense + angles

    assert ahead == wanted(flops.forward, 1)
    assert counter.get_total_flops() == wanted(flops.training, 3)


def test_dense_models_and_unknown_ones():
    dense = {"model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2,
             "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 10, "sliding_window": 4,
             "use_sliding_window": False}  # fmt: skip
    assert flops.active_parameters(dense) == {"projections": 384, "router": 0, "experts": 768, "head": 80}
    assert flops.windows(dense) == [None, None]
    assert flops.adapter_parameters(dense, 1, "all-linear") == 2 * (16 + 12 + 12 + 16 + 3 * 24)
    assert flops.adapter_parameters(dense, 1, ["self_attn.q_proj"]) == 2 * 16
    assert flops.is_known(dense) and not flops.is_known({"model_type": "deepseek_v3"}) and not flops.is_known({})


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA H200", 989), ("NVIDIA H200 NVL", 835),
        ("NVIDIA A100-SXM4-80GB", 312), ("NVIDIA A100 80GB PCIe", 312), ("NVIDIA B200", 2250), ("NVIDIA GB200", 2500),
        ("NVIDIA GH200 480GB", 989), ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None), ("NVIDIA H20", None),
        ("NVIDIA A10G", None), ("cpu", None), ("", None),
    ],
)  # fmt: skip
def test_peak_by_the_device_s_name(device, peak):
    assert flops.peak_tflops(device) == peak
