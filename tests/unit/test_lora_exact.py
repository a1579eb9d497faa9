"""The formula of exact adapters: its value, its gradients, what it keeps of small updates, and where it applies."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional

from rft.hooks.kept_share import KeptShare, probed
from rft.hooks.lora_exact import ExactLinear, exact_linear, install, trainer_kept_share

FEATURES, OUTPUTS, RANK = 256, 512, 16


def peft_model(dtype=torch.bfloat16, **changes) -> torch.nn.Module:
    torch.manual_seed(0)
    options = {"r": RANK, "lora_alpha": 2 * RANK, "target_modules": ["0"], **changes}
    model = get_peft_model(torch.nn.Sequential(torch.nn.Linear(FEATURES, OUTPUTS)), LoraConfig(**options))
    return model.to(dtype)


def layer_of(model: torch.nn.Module):
    return next(m for m in model.modules() if hasattr(m, "lora_A") and hasattr(m, "base_layer"))


def matrices(dtype, seed: int = 0) -> dict:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"x": (2, 3, 12), "weight": (10, 12), "bias": (10,), "a": (4, 12), "b": (10, 4)}
    return {n: torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for n, s in shapes.items()}


def test_gradients_are_those_of_the_formula():
    m = matrices(torch.float64)
    trained = [m[name].requires_grad_() for name in ("x", "a", "b")]

    def run(x, a, b):
        return exact_linear(x, m["weight"], m["bias"], a, b, 1.5)

    assert torch.autograd.gradcheck(run, trained)
    plain = functional.linear(m["x"], m["weight"] + 1.5 * m["b"] @ m["a"], m["bias"])
    assert torch.allclose(run(*trained), plain, rtol=1e-12, atol=1e-12)


def test_bf16_outputs_and_gradients_are_rounded_once():
    """Against float64: no further away than half a spacing of the result, plus what `x A'ᵀ` itself rounds."""
    m = {name: value.requires_grad_(name in "xab") for name, value in matrices(torch.bfloat16).items()}
    out = exact_linear(*m.values(), 2.0)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    out.backward(grad)
    d = {name: value.detach().double().requires_grad_() for name, value in m.items()}
    wanted = functional.linear(d["x"], d["weight"] + 2 * d["b"] @ d["a"], d["bias"])
    wanted.backward(grad.double())
    beside = (d["x"] @ d["a"].T).abs() @ d["b"].abs().T * 2
    assert ((out.double() - wanted).abs() <= 2**-8 * (wanted.abs() + beside)).all()
    for name in ("x", "a", "b"):
        assert (m[name].grad.double() - d[name].grad).norm() < 2**-7 * d[name].grad.norm(), name
    assert m["weight"].grad is None


@pytest.mark.parametrize("updates", [1, 8, 24, 100])
@torch.no_grad()
def test_small_updates_are_kept_where_peft_loses_them(updates):
    """Updates of 5e-7 with equal signs, 4096 x 512 outputs: the estimate's standard error is under 2%."""
    shares = {}
    for way in ("peft", "exact"):
        model = peft_model()
        layer = layer_of(model)
        if way == "exact":
            install(model)
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(4096, FEATURES, generator=generator).to(torch.bfloat16)
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        off = layer(x)
        b.copy_(updates * 5e-7 * torch.randn(b.shape, generator=generator).sign())
        share = KeptShare()
        share.add(x, a * layer.scaling["default"], b, layer(x).float() - off.float())
        shares[way] = share.shares()[0]
    assert 0.93 < shares["exact"] < 1.07
    assert shares["peft"] < 0.02 + 0.01 * updates


def test_adapter_off_is_the_base_bit_for_bit():
    model = peft_model()
    install(model)
    layer = layer_of(model)
    torch.nn.init.normal_(layer.lora_B["default"].weight)
    x = torch.randn(7, FEATURES).to(torch.bfloat16)
    base = layer.base_layer(x)
    assert not torch.equal(layer(x), base)
    with model.disable_adapter():
        assert torch.equal(layer(x), base)


def test_what_the_formula_does_not_cover_keeps_pefts_forward_pass(capsys):
    for changes in ({"lora_dropout": 0.1}, {"use_dora": True}):
        model = peft_model(**changes)
        install(model)
        assert type(layer_of(model)) is not ExactLinear
        assert "1 of 1 layers keep PEFT's forward pass" in capsys.readouterr().out


def test_zero_init_does_not_round_before_the_bias(monkeypatch):
    """It replaces `functional.linear` for good by one that does, for inputs of three dimensions (DeepSpeed 0.18.5)."""
    from deepspeed.runtime.zero.linear import zero3_linear_wrap

    m = matrices(torch.bfloat16)
    x = torch.randn(3, 50, 12, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    rest = [m[name] for name in ("weight", "bias", "a", "b")]
    wanted = exact_linear(x.flatten(0, 1), *rest, 2.0)
    monkeypatch.setattr(functional, "linear", zero3_linear_wrap)
    assert torch.equal(exact_linear(x, *rest, 2.0).flatten(0, 1), wanted)


def test_a_base_weight_that_would_be_trained_is_refused():
    m = matrices(torch.float32)
    m["weight"].requires_grad_()
    with pytest.raises(ValueError, match="trains its adapter only"):
        exact_linear(*m.values(), 1.0)


def test_trainer_measures_what_its_outputs_keep():
    model = peft_model()
    layer = layer_of(model)
    install(model)
    assert trainer_kept_share([]) is None
    assert trainer_kept_share([layer]) is None  # a zero adapter
    torch.nn.init.normal_(layer.lora_B["default"].weight, std=0.1)
    assert 0.98 < trainer_kept_share([layer]) < 1.02


def test_probed_layers_cover_every_projection():
    names = [f"{layer}.{part}" for layer in range(24) for part in "qkvo"]
    chosen = probed(names)
    assert 4 <= len(chosen) <= 6
    assert {name[-1] for name in chosen} == set("qkvo")
    assert probed(["only"]) == ["only"]
