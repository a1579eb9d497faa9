"""The resident experts against transformers' own, dequantised, in float64."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GptOssConfig, __version__
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from rft.actor.combine import combine
from rft.actor.experts import ResidentExperts, route
from rft.actor.grouped import grouped_mm
from rft.mxfp4_codec import decode, encode

HIDDEN, INNER = 64, 32


def resident(experts: int, dtype: torch.dtype = torch.float64, seed: int = 0, spread: float = 1.0) -> ResidentExperts:
    """Random experts; with a spread of 1 gates and ups reach beyond the clamps."""
    generator = torch.Generator().manual_seed(seed)
    config = SimpleNamespace(num_local_experts=experts, hidden_size=HIDDEN, intermediate_size=INNER)
    module = ResidentExperts(config, "cpu", dtype)
    for name, columns in (("gate_up_proj", HIDDEN), ("down_proj", INNER)):
        bias = getattr(module, f"{name}_bias")
        weight = spread * torch.randn(experts, columns, bias.shape[1], generator=generator)
        module._buffers[f"{name}_blocks"], module._buffers[f"{name}_scales"] = encode(weight)
        bias.data = spread * torch.randn(bias.shape, generator=generator).to(dtype)
    return module


def transformers_experts(module: ResidentExperts) -> GptOssExperts:
    """transformers' module with the same weights."""
    experts, dtype = len(module.down_proj_bias), module.down_proj_bias.dtype
    config = GptOssConfig(num_local_experts=experts, hidden_size=HIDDEN, intermediate_size=INNER)
    config._experts_implementation = "eager"  # of transformers 5, whose grouped products take no float64
    theirs = GptOssExperts(config).to(dtype).requires_grad_(False)
    for name in ("gate_up_proj", "down_proj"):
        blocks, scales = getattr(module, f"{name}_blocks"), getattr(module, f"{name}_scales")
        getattr(theirs, name).copy_(decode(blocks, scales, dtype))
        getattr(theirs, f"{name}_bias").copy_(getattr(module, f"{name}_bias"))
    return theirs


def results(call, x, weights, indices, grad):
    """Output, gradient of x and of the weights."""
    x, weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
    out = call(x, weights, indices)
    return out, *torch.autograd.grad(out, (x, weights), grad)


def by_transformers(theirs: GptOssExperts):
    def call(x, weights, indices):
        if not __version__.startswith("4."):
            return theirs(x, indices, weights)
        scores = torch.zeros(len(x), theirs.num_experts, dtype=x.dtype).scatter(1, indices, weights)
        return theirs(x[None], router_indices=indices, routing_weights=scores)[0]

    return call


def choices(tokens: int, experts: int, chosen: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weights and indices of random tokens; each token's experts differ."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, HIDDEN, generator=generator, dtype=torch.float64)
    scores, indices = torch.randn(tokens, experts, generator=generator, dtype=torch.float64).topk(chosen)
    return x, scores.softmax(-1), indices


def assert_equal_to_transformers(module, x, weights, indices):
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    ours = results(module, x, weights, indices, grad)
    theirs = results(by_transformers(transformers_experts(module)), x, weights, indices, grad)
    for mine, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-12, atol=1e-12 * wanted.abs().max().item())


@pytest.mark.parametrize("keep_h", [False, True])
@settings(max_examples=25)
@given(data=st.data(), tokens=st.integers(1, 40), experts=st.integers(1, 6), seed=st.integers(0, 99))
def test_output_and_gradients_are_those_of_transformers(keep_h, data, tokens, experts, seed):
    chosen = data.draw(st.integers(1, min(experts, 4)))
    module = resident(experts, seed=seed)
    module.keep_h = keep_h
    assert_equal_to_transformers(module, *choices(tokens, experts, chosen, seed))


@pytest.mark.parametrize("one", [0, 2, 3])
def test_one_expert_may_have_all_tokens_and_the_others_none(one):
    x, weights, _ = choices(tokens=9, experts=4, chosen=1)
    assert_equal_to_transformers(resident(4), x, weights, torch.full((9, 1), one))


def test_some_gates_and_ups_are_beyond_the_clamps():
    """Else the tests above would say nothing about them."""
    module, (x, _, indices) = resident(4), choices(tokens=30, experts=4, chosen=2)
    theirs = transformers_experts(module)
    h = x @ theirs.gate_up_proj[indices[0, 0]] + theirs.gate_up_proj_bias[indices[0, 0]]
    assert (h[:, ::2] > 7).any()
    assert (h[:, 1::2] > 7).any()
    assert (h[:, 1::2] < -7).any()


def test_gradients_are_those_of_the_function_itself():
    module, (x, weights, indices) = resident(3), choices(tokens=5, experts=3, chosen=2)
    inputs = (x.requires_grad_(), weights.requires_grad_())
    assert torch.autograd.gradcheck(lambda x, weights: module(x, weights, indices), inputs, fast_mode=True)


def test_at_a_clamp_the_gradient_passes_as_through_torch_clamp():
    module, (x, weights, indices) = resident(1), choices(tokens=4, experts=1, chosen=1)
    module.gate_up_proj_bias.data.copy_(torch.tensor([7.0, 7.0, 7.0, -7.0]).repeat(1, INNER // 2))
    assert_equal_to_transformers(module, torch.zeros_like(x), weights, indices)


@pytest.mark.parametrize("keep_h", [False, True])
def test_bf16_is_as_near_to_float64_as_transformers(keep_h):
    """Root mean square error of output and gradients: no more than that of transformers in bf16.

    Within the clamps: at one of them a last bit decides whether a gradient passes.
    """
    module, exact = (resident(4, dtype, spread=0.1) for dtype in (torch.bfloat16, torch.float64))
    module.keep_h = keep_h
    x, weights, indices = choices(tokens=64, experts=4, chosen=2)
    for name in ("gate_up_proj_bias", "down_proj_bias"):
        getattr(exact, name).data.copy_(getattr(module, name))
    x, grad = x.bfloat16(), torch.randn(64, HIDDEN, generator=torch.Generator().manual_seed(1)).bfloat16()
    truth = results(exact, x.double(), weights, indices, grad.double())
    ours = results(module, x, weights.float(), indices, grad)
    theirs = results(by_transformers(transformers_experts(module)), x, weights.bfloat16(), indices, grad)
    for mine, wanted, yours in zip(ours, truth, theirs, strict=True):
        assert (mine - wanted).norm() <= (yours - wanted).norm()


def test_a_kept_first_product_changes_no_bit_and_survives_a_second_backward_pass():
    module, (x, weights, indices) = resident(4, torch.bfloat16), choices(tokens=20, experts=4, chosen=2)
    x, weights = x.bfloat16().requires_grad_(), weights.float().requires_grad_()
    grads = []
    for module.keep_h in (False, True):
        out = module(x, weights, indices)
        grads += [torch.autograd.grad(out, (x, weights), torch.ones_like(out), retain_graph=True) for _ in range(2)]
    for other in grads[1:]:
        assert all(a.equal(b) for a, b in zip(grads[0], other, strict=True))


def test_only_what_asks_gets_a_gradient():
    module, (x, weights, indices) = resident(2), choices(tokens=3, experts=2, chosen=1)
    module(x.requires_grad_(), weights, indices).sum().backward()
    assert x.grad is not None
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in module.parameters())
    x.grad = None
    module(x.detach(), weights.requires_grad_(), indices).sum().backward()
    assert weights.grad is not None
    assert x.grad is None


def test_what_a_forward_pass_saves():
    """Bytes of the input, of the routing and, where it is kept, of the first product; never of the second."""
    module, (x, weights, indices) = resident(4), choices(tokens=20, experts=4, chosen=2)
    for module.keep_h in (False, True):
        out = module(x.requires_grad_(), weights.requires_grad_(), indices)
        saved = [each for each in out.grad_fn.saved_tensors if each is not None and each.dim() == 2]
        widths = sorted(each.shape[1] for each in saved)
        assert widths == [2, 2, HIDDEN] + [2 * INNER] * module.keep_h


def test_the_state_has_the_biases_only_and_the_bytes_move_along():
    module = resident(2)
    assert sorted(module.state_dict()) == ["down_proj_bias", "gate_up_proj_bias"]
    assert {name for name, _ in module.named_buffers()} == {
        f"{part}_proj_{kind}" for part in ("gate_up", "down") for kind in ("blocks", "scales")
    }
    assert module.to(torch.bfloat16).gate_up_proj_blocks.dtype == torch.uint8


def test_a_size_that_is_no_multiple_of_the_block_is_refused():
    config = SimpleNamespace(num_local_experts=2, hidden_size=48, intermediate_size=32)
    with pytest.raises(ValueError, match="found hidden_size 48 and intermediate_size 32, wanted multiples of 32"):
        ResidentExperts(config)


@given(
    indices=st.integers(1, 5).flatmap(
        lambda k: st.lists(st.lists(st.integers(0, 6), min_size=k, max_size=k), min_size=1, max_size=12)
    )
)
def test_rows_are_sorted_by_expert_and_within_one_by_token(indices):
    indices = torch.tensor(indices)
    routing, chosen = route(indices, experts=7), indices.shape[1]
    flat = indices.flatten().tolist()
    assert routing.order.tolist() == sorted(range(len(flat)), key=flat.__getitem__)
    assert routing.experts.tolist() == sorted(flat)
    assert routing.ends.tolist() == [sum(each <= expert for each in flat) for expert in range(7)]
    assert routing.ends.dtype == torch.int32
    assert routing.order[routing.inverse].equal(torch.arange(len(flat)).view(-1, chosen))


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("ends", [[0, 3, 3, 8], [8, 8, 8, 8], [0, 0, 0, 8]])
def test_grouped_products(ends, transpose):
    x, weight = torch.randn(8, 5, dtype=torch.float64), torch.randn(4, 5, 5, dtype=torch.float64)
    out = grouped_mm(x, weight, torch.tensor(ends, dtype=torch.int32), transpose)
    expert = [next(e for e, end in enumerate(ends) if row < end) for row in range(8)]
    matrices = weight.mT if transpose else weight
    torch.testing.assert_close(out, torch.stack([x[row] @ matrices[e] for row, e in enumerate(expert)]))


def test_a_token_adds_its_rows_in_one_order_whatever_the_rest_of_the_batch():
    rows = torch.randn(6, HIDDEN).bfloat16()
    inverse = torch.tensor([[4, 0], [1, 3], [5, 2]])
    whole = combine(rows, inverse)
    assert whole.equal((rows[inverse[:, 0]].float() + rows[inverse[:, 1]].float()).bfloat16())
    assert combine(rows, inverse[1:2]).equal(whole[1:2])
