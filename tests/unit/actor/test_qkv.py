"""q, k and v in one product: the formula and its gradients, and no worse rounding than three exact layers."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional

from rft.actor.qkv import exact_operands, rotated_qkv
from rft.actor.rotary import rotate
from rft.hooks.lora_exact import exact_linear, install

TOKENS, HIDDEN, DIM, HEADS, RANKS, SCALINGS = 7, 24, 8, (6, 2, 2), (4, 4, 8), (2.0, 2.0, 0.5)


def drawn(dtype, bias: bool = True) -> tuple:
    """x, layers, cos and sin."""
    generator = torch.Generator().manual_seed(0)

    def one(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    layers = []
    for heads, rank, scaling in zip(HEADS, RANKS, SCALINGS, strict=True):
        out = heads * DIM
        layers.append((one(out, HIDDEN), one(out) if bias else None, one(rank, HIDDEN), one(out, rank), scaling))
    return one(TOKENS, HIDDEN), layers, one(TOKENS, DIM // 2), one(TOKENS, DIM // 2)


def trained(x, layers) -> list[torch.Tensor]:
    return [x.requires_grad_(), *(one.requires_grad_() for layer in layers for one in layer[2:4])]


def apart(x, layers, cos, sin, linear) -> tuple:
    q, k, v = (linear(x, *layer).unflatten(1, (-1, DIM)) for layer in layers)
    return *rotate(q, k, cos, sin), v


def merged(x, weight, bias, a, b, scaling) -> torch.Tensor:
    return functional.linear(x, weight + scaling * b @ a, bias)


def run(made: tuple, leaves: list, grads: list) -> list[torch.Tensor]:
    return [*(one.detach() for one in made), *torch.autograd.grad(made, leaves, grads)]


@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_the_formula(bias):
    x, layers, cos, sin = drawn(torch.float64, bias)
    leaves = trained(x, layers)
    grads = [torch.randn(TOKENS, heads, DIM, dtype=torch.float64) for heads in HEADS]
    found = run(rotated_qkv(x, layers, cos, sin, DIM), leaves, grads)
    for one, other in zip(found, run(apart(x, layers, cos, sin, merged), leaves, grads), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_bf16_is_as_exact_as_three_layers():
    """Against float64; a tenth for chance. The gradient of x is rounded once here, and five times there."""
    x, layers, cos, sin = drawn(torch.bfloat16)
    leaves = trained(x, layers)
    grads = [torch.randn(TOKENS, heads, DIM).bfloat16() for heads in HEADS]
    exact_layers = [tuple(one.detach().double() if torch.is_tensor(one) else one for one in layer) for layer in layers]
    x64 = x.detach().double()
    exact_leaves = trained(x64, exact_layers)
    exact = run(
        apart(x64, exact_layers, cos.double(), sin.double(), merged), exact_leaves, [grad.double() for grad in grads]
    )
    joint = run(rotated_qkv(x, layers, cos, sin, DIM), leaves, grads)
    three = run(apart(x, layers, cos, sin, exact_linear), leaves, grads)
    for one, other, wanted in zip(joint, three, exact, strict=True):
        assert one.dtype == torch.bfloat16
        assert (one.double() - wanted).norm() <= 1.1 * (other.double() - wanted).norm()


def test_one_copy_of_x_is_kept():
    x, layers, cos, sin = drawn(torch.bfloat16)
    trained(x, layers)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        q, _, v = rotated_qkv(x, layers, cos, sin, DIM)
    wide = [t for t in kept if len(t) == TOKENS and t.shape[1] >= HIDDEN]
    assert [t.shape for t in wide] == [(TOKENS, HIDDEN + sum(RANKS))]
    assert q.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()


def test_a_trained_base_is_refused():
    x, layers, cos, sin = drawn(torch.float32)
    layers[1][0].requires_grad_()
    with pytest.raises(ValueError, match="found a base weight that requires a gradient"):
        rotated_qkv(x, layers, cos, sin, DIM)


def test_layers_that_are_joined():
    """PEFT's own, with one rounding and the adapter on; one without an adapter leaves all three to themselves."""
    names = ["q", "k", "v"]
    model = torch.nn.ModuleDict({name: torch.nn.Linear(HIDDEN, DIM) for name in names})
    plain = tuple(model.values())
    assert exact_operands(plain) is None
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=names))
    layers = tuple(model[name] for name in names)
    assert exact_operands(layers) is None
    install(adapted)
    for layer, (weight, bias, a, b, scaling) in zip(layers, exact_operands(layers), strict=True):
        assert weight is layer.base_layer.weight and bias is layer.base_layer.bias
        assert a is layer.lora_A["default"].weight and b is layer.lora_B["default"].weight and scaling == 2.0
    assert exact_operands((*layers[:2], plain[2])) is None
    with adapted.disable_adapter():
        assert exact_operands(layers) is None
