"""The resident actor against transformers' own model, dequantised and eager, one sequence at a time."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm

from rft.actor.load import load_resident
from rft.actor.packed import pack
from rft.hooks import lora_exact
from rft.tiny.checkpoint import build_model, load_dequantized, save_checkpoint

LENGTHS = [1, 2, 90, 33, 64, 65]  # the window is 64
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]
# Sums of 128 to 256 terms in float32 over two layers; float64 shows what is arithmetic and not rounding.
BOUND = {torch.float64: 1e-9, torch.float32: 2e-4}


def with_adapter(model: torch.nn.Module) -> torch.nn.Module:
    """LoRA with B other than 0, the same for every model of one shape."""
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS))
    lora_exact.install(model)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


class ExactNorm(GptOssRMSNorm):
    """transformers' norm rounds to float32, whatever the model's dtype."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = (exact.pow(2).mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()
        return (self.weight * exact * scale).to(x.dtype)


def transformers_model(place, dtype: torch.dtype) -> torch.nn.Module:
    model = load_dequantized(place, dtype)
    for module in model.modules():
        if type(module) is GptOssRMSNorm:
            module.__class__ = ExactNorm
    return with_adapter(model)


def sequences() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, 60, (length,), generator=generator) for length in LENGTHS]


def scored(lengths: list[int]) -> torch.Tensor:
    """Places whose next token belongs to the same sequence."""
    ends = torch.tensor(lengths).cumsum(0)
    return torch.tensor([i for i in range(sum(lengths)) if i + 1 not in ends], dtype=torch.int64)


def resident_log_probs(model, parts: list[torch.Tensor], **options) -> tuple[torch.Tensor, torch.Tensor | None]:
    tokens, lengths = torch.cat(parts), [len(part) for part in parts]
    rows = scored(lengths)
    return model(tokens, packed=pack(lengths, tokens.device), rows=rows, targets=tokens[rows + 1], **options)


def eager_log_probs(model, parts: list[torch.Tensor], temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    found = [model(part[None]).logits[0, :-1] / temperature for part in parts]
    rows = torch.cat([logits.log_softmax(-1) for logits in found])
    labels = torch.cat([part[1:] for part in parts])
    return rows.gather(1, labels[:, None])[:, 0], -(rows.exp() * rows).sum(-1)


def gradients(model, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """One expert that gets every token, one that gets none; biases, norms and sinks that are not trivial."""
    model, generator = build_model(seed=7), torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if name.endswith(("norm.weight", "bias", "sinks")):
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        for layer in model.model.layers:
            layer.mlp.router.bias[0] = 100.0
            layer.mlp.router.bias[1] = -100.0
    path = tmp_path_factory.mktemp("uneven")
    save_checkpoint(model, path)
    return path


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("which", ["checkpoint", "uneven"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_and_gradients_are_transformers(which, dtype, temperature, request):
    place, parts = request.getfixturevalue(which), sequences()
    theirs = transformers_model(place, dtype)
    ours = with_adapter(load_resident(str(place), "cpu", dtype))
    wanted, entropy = eager_log_probs(theirs, parts, temperature)
    found, own_entropy = resident_log_probs(ours, parts, temperature=temperature, entropy="gradient")
    assert (found - wanted).abs().max() < BOUND[dtype]
    assert (own_entropy - entropy).abs().max() < BOUND[dtype]
    weights = torch.linspace(-1, 1, len(found))
    wanted_gradients = gradients(theirs, (wanted * weights).sum() + 0.3 * entropy.sum())
    found_gradients = gradients(ours, (found * weights).sum() + 0.3 * own_entropy.sum())
    assert found_gradients.keys() == wanted_gradients.keys()
    for name, gradient in wanted_gradients.items():
        assert (found_gradients[name] - gradient).norm() <= 10 * BOUND[dtype] * gradient.norm(), name


@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_packed_is_one_sequence_at_a_time(checkpoint, dtype):
    model, parts = with_adapter(load_resident(str(checkpoint), "cpu", dtype)), sequences()
    together, _ = resident_log_probs(model, parts)
    alone = torch.cat([resident_log_probs(model, [part])[0] for part in parts])
    assert (together - alone).abs().max() < BOUND[dtype]


def test_without_its_adapter_it_is_the_base_model(checkpoint):
    parts = sequences()
    base = load_resident(str(checkpoint), "cpu", torch.float32)
    wanted, _ = resident_log_probs(base, parts)
    adapted = with_adapter(base)
    assert not torch.equal(resident_log_probs(adapted, parts)[0], wanted)
    with adapted.disable_adapter():
        assert torch.equal(resident_log_probs(adapted, parts)[0], wanted)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_layers_give_the_same_bits(checkpoint, reentrant):
    found = []
    for recompute in (False, True):
        model = with_adapter(load_resident(str(checkpoint), "cpu")).train()
        if recompute:
            model.enable_input_require_grads()
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        log_probs, _ = resident_log_probs(model, sequences())
        found.append([log_probs.detach(), *gradients(model, log_probs.sum()).values()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_bytes_of_experts_stay_as_they_are_stored(checkpoint):
    from safetensors.torch import load_file

    stored, model = load_file(checkpoint / "model.safetensors"), load_resident(str(checkpoint), "cpu")
    held = dict(model.named_parameters()) | dict(model.named_buffers())
    held = {name: tensor for name, tensor in held.items() if not name.endswith("inv_freq")}
    assert held.keys() == stored.keys()
    assert all(torch.equal(held[name], tensor) and held[name].dtype == tensor.dtype for name, tensor in stored.items())
    assert not [name for name in model.state_dict() if name.endswith(("_blocks", "_scales"))]  # no checkpoint has them


def test_a_model_that_is_not_packed_is_refused(checkpoint, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss"}')
    with pytest.raises(ValueError, match=r"mxfp4[\s\S]*repair: --actor eager"):
        load_resident(str(tmp_path), "cpu")


def test_a_checkpoint_that_lacks_a_tensor_is_refused(checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    stored = load_file(checkpoint / "model.safetensors")
    del stored["model.layers.1.mlp.experts.down_proj_scales"]
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((checkpoint / "config.json").read_text())
    with pytest.raises(ValueError, match=r"lacks tensor model\.layers\.1\.mlp\.experts\.down_proj_scales"):
        load_resident(str(tmp_path), "cpu")
