"""gpt-oss's experts, frozen, held as MXFP4 bytes, and their backward pass to the input and to the router's weights.

Forward: sort tokens by expert, W1, SwiGLU, W2, weighted sum. The second product is linear in SwiGLU's output `a`, so
with `da = grad @ W2` the gradient of a token's weight is `<da, a> + <grad, bias2>`: nothing behind the first product
`h` is needed again, and `a` is made from h anew. So the input is saved, and h where memory allows.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from rft.actor.combine import combine, combine_backward
from rft.actor.dequantize import SCRATCH
from rft.actor.grouped import grouped_mm
from rft.actor.swiglu import swiglu, swiglu_backward
from rft.mxfp4_codec import BLOCK

if TYPE_CHECKING:
    from transformers import PretrainedConfig

PACKED = ("gate_up_proj", "down_proj")


class Routing(NamedTuple):
    """Which rows go to which expert, rows being the tokens' choices sorted by expert, and by token within one.

    `order` (rows,): a row's place `token * k + j`; `inverse` (tokens, k): the row of a choice; `experts` (rows,): a
    row's expert, `ends` int32 (experts,): where each expert's rows end.
    """

    order: torch.Tensor
    inverse: torch.Tensor
    experts: torch.Tensor
    ends: torch.Tensor


def route(indices: torch.Tensor, experts: int) -> Routing:
    """Sort choices by expert. `indices`: integers (tokens, k) below `experts`."""
    narrow = torch.uint8 if experts <= 256 else torch.int32  # a radix sort takes time by the bits of its keys
    ordered, order = indices.flatten().to(narrow).sort(stable=True)
    ends = torch.searchsorted(
        ordered, torch.arange(experts, dtype=narrow, device=indices.device), right=True, out_int32=True
    )
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    return Routing(order, inverse.view(indices.shape), ordered, ends)


class ResidentExperts(torch.nn.Module):
    """Experts of one layer, under the names of a checkpoint in MXFP4.

    The packed weights are buffers outside of the state dict: a checkpoint of a run need not hold frozen bytes again.
    The biases are frozen parameters. Everything is uninitialised until a checkpoint fills it.

    Attributes:
        keep_h: whether a forward pass keeps its first product, 2 x inner numbers a chosen expert, for the backward
            pass, which else computes it again, to the same bits. May be set before each forward pass.
        held: which experts the buffers hold.

    Args:
        config: of gpt-oss; its `num_local_experts`, `hidden_size`, `intermediate_size` are read.
        dtype: of the biases.

    Raises:
        ValueError: a size is no multiple of MXFP4's block of 32.
    """

    def __init__(
        self,
        config: "PretrainedConfig",
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ):
        super().__init__()
        experts, hidden, inner = config.num_local_experts, config.hidden_size, config.intermediate_size
        if hidden % BLOCK or inner % BLOCK:
            raise ValueError(
                f"resident experts: found hidden_size {hidden} and intermediate_size {inner}, "
                f"wanted multiples of {BLOCK}, MXFP4's block"
            )
        self.keep_h = True
        self.held = slice(0, experts)
        for name, rows, columns in zip(PACKED, (2 * inner, hidden), (hidden, inner), strict=True):
            shape = (experts, rows, columns // BLOCK)
            blocks = torch.empty(*shape, BLOCK // 2, dtype=torch.uint8, device=device)
            self.register_buffer(f"{name}_blocks", blocks, persistent=False)
            scales = torch.empty(shape, dtype=torch.uint8, device=device)
            self.register_buffer(f"{name}_scales", scales, persistent=False)
            bias = torch.nn.Parameter(torch.empty(experts, rows, dtype=dtype, device=device), requires_grad=False)
            self.register_parameter(f"{name}_bias", bias)

    def dense(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """A dequantised weight (experts, out, in); valid until another layer asks for its own."""
        return SCRATCH.dense(getattr(self, f"{name}_blocks"), getattr(self, f"{name}_scales"), dtype)

    def forward(self, x: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Sum of the chosen experts' outputs, (tokens, hidden).

        Args:
            x: (tokens, hidden), of the biases' dtype.
            weights: of the chosen experts, float32 (tokens, k).
            indices: the chosen experts, int64 (tokens, k).
        """
        return _Experts.apply(x, weights, indices, self, self.keep_h and torch.is_grad_enabled())


class _Experts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weights, indices, module, keep_h):
        x, weights, indices = x.contiguous(), weights.contiguous(), indices.contiguous()
        routing = route(indices, len(module.down_proj_bias))
        h = _first_product(x, routing, module)
        a = swiglu(h, module.gate_up_proj_bias, routing.experts)
        ctx.save_for_backward(x, weights, h if keep_h else None, *routing)
        ctx.module = module
        del h  # unless kept, its memory serves the second product
        y = grouped_mm(a, module.dense("down_proj", x.dtype), routing.ends, transpose=True)
        del a
        return combine(y, routing.inverse, weights, module.down_proj_bias, indices)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weights, kept, *routing = ctx.saved_tensors
        routing, module = Routing(*routing), ctx.module
        grads, products = combine_backward(grad.contiguous(), routing.order, routing.experts, module.down_proj_bias)
        grad_a = grouped_mm(grads, module.dense("down_proj", x.dtype), routing.ends, transpose=False)
        del grads
        h = _first_product(x, routing, module) if kept is None else kept
        # A second backward pass may need what was saved; what was computed here is overwritten.
        grad_h = h if kept is None else torch.empty_like(h)
        row_weights = weights.flatten()[routing.order]
        products += swiglu_backward(h, module.gate_up_proj_bias, routing.experts, grad_a, row_weights, grad_h)
        del grad_a, h
        grad_weights = grad_x = None
        if ctx.needs_input_grad[1]:
            grad_weights = torch.empty_like(products)
            grad_weights[routing.order] = products
            grad_weights = grad_weights.view_as(weights).to(weights.dtype)
        if ctx.needs_input_grad[0]:
            rows = grouped_mm(grad_h, module.dense("gate_up_proj", x.dtype), routing.ends, transpose=False)
            grad_x = combine(rows, routing.inverse)
        return grad_x, grad_weights, None, None, None


def _first_product(x: torch.Tensor, routing: Routing, module: ResidentExperts) -> torch.Tensor:
    """(tokens x k, 2 x inner), without bias, sorted by expert."""
    rows = x[routing.order // routing.inverse.shape[1]]
    return grouped_mm(rows, module.dense("gate_up_proj", x.dtype), routing.ends, transpose=True)
