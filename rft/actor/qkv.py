"""q, k and v of LoRA layers in one matrix product that rounds once, rotated in place.

As in exact adapters (docs/numerics.md) `A' = scaling * A` is further rows of inputs and B further columns of weights:

    [q k v] = [x  x A'qᵀ  x A'kᵀ  x A'vᵀ] [Wq Bq 0 0; Wk 0 Bk 0; Wv 0 0 Bv]ᵀ + bias

Why one product, in numbers read or written a token and layer, with hidden size H = 2,880 and 4,096 + 512 of q and k:
forward 4 H instead of 12 H (x is read for A, copied beside x A', read by the product: once instead of three times);
backward 2 H instead of 12 H (dx is written once where three were written and added, and dA reads x once), and
gradients of q and k are rotated to where the product reads them, 2 x 4,608 numbers less. That is 18 H + 9,216 numbers,
122 kB less: 12 GB a pass of 4,096 tokens of 24 layers. The three gradients of x are added before they are rounded. Both
ways W is copied to stand beside B or A', as three layers copy it.
"""

import torch

from rft.actor.rotary import rotate_into

Operands = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, float]


def rotated_qkv(
    x: torch.Tensor, layers: list[Operands], cos: torch.Tensor, sin: torch.Tensor, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v, (tokens, heads, head_dim) each, of which q and k are rotated: columns of one tensor.

    Keeps x with `x A'ᵀ` beside it for the backward pass, instead of x: nothing else should.

    Args:
        x: (tokens, in), in the weights' dtype.
        layers: of q, k and v: frozen weight (out, in) and bias (out,) or None, A (rank, in), B (out, rank), scaling.
        cos, sin: see `rft.actor.rotary.rotate`.

    Raises:
        ValueError: a base weight asks for a gradient, which it would not get.
    """
    weights = [weight for weight, *_ in layers]
    if any(weight.requires_grad for weight in weights):
        raise ValueError("q, k and v train their adapters only; found a base weight that requires a gradient")
    dtype = x.dtype
    # Small, and left to autograd: scaling, stacking and the zeros beside the blocks of B.
    a = torch.cat([a.to(dtype) * scaling for *_, a, _, scaling in layers])
    b = torch.block_diag(*(b.to(dtype) for *_, b, _ in layers))
    biases = [bias for _, bias, *_ in layers]
    bias = None if any(bias is None for bias in biases) else torch.cat(biases)
    return _RotatedQkv.apply(x, a, b, bias, cos, sin, head_dim, *weights)


def exact_operands(layers: tuple[torch.nn.Module, ...]) -> list[Operands] | None:
    """What `rotated_qkv` needs of each layer, from its `operands()`; None unless every layer has it.

    A layer has none without an adapter that rounds once, or with its adapter off. ZeRO-3 gathers parameters (each has a
    `ds_id`) for a layer's own forward pass, so that has to be called.
    """
    found = [layer.operands() if hasattr(layer, "operands") else None for layer in layers]
    return found if all(each is not None and not hasattr(each[0], "ds_id") for each in found) else None


class _RotatedQkv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, a, b, bias, cos, sin, head_dim, *weights):
        hidden, rank = x.shape[1], len(a)
        wide = x.new_empty(len(x), hidden + rank)
        wide[:, :hidden] = x
        torch.mm(x, a.T, out=wide[:, hidden:])
        widened = b.new_empty(len(b), hidden + rank)
        torch.cat(weights, out=widened[:, :hidden])
        widened[:, hidden:] = b
        out = wide @ widened.T if bias is None else torch.addmm(bias, wide, widened.T)
        q, k, v = _heads(out, weights, head_dim)
        rotate_into(q, k, cos, sin, 1, q, k)
        ctx.save_for_backward(wide, a, b, cos, sin, *weights)
        return q, k, v

    @staticmethod
    def backward(ctx, grad_q, grad_k, grad_v):
        wide, a, b, cos, sin, *weights = ctx.saved_tensors
        hidden, outputs = a.shape[1], len(b)
        # The gradients of the outputs and, beside them, of `x A'ᵀ`, as the product for dx reads them.
        grads = wide.new_empty(len(wide), outputs + len(a))
        grad, beside = grads[:, :outputs], grads[:, outputs:]
        q, k, v = _heads(grad, weights, grad_q.shape[-1])
        rotate_into(grad_q, grad_k, cos, sin, -1, q, k)
        v.copy_(grad_v)
        torch.mm(grad, b, out=beside)
        grad_x = grads @ torch.cat((*weights, a)) if ctx.needs_input_grad[0] else None
        grad_a, grad_b = beside.T @ wide[:, :hidden], grad.T @ wide[:, hidden:]
        return grad_x, grad_a, grad_b, *(None for _ in range(4 + len(weights)))


def _heads(out: torch.Tensor, weights, head_dim: int) -> list[torch.Tensor]:
    """The columns of each weight, (tokens, heads, head_dim)."""
    return [columns.unflatten(1, (-1, head_dim)) for columns in out.split([len(w) for w in weights], 1)]
