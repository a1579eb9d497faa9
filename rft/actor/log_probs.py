"""Log-probabilities and entropies of tokens from hidden states, a chunk of rows at a time.

The vocabulary has 201,088 tokens: logits in float32 of 4,096 tokens are 3.3 GB, and autograd through a log-softmax
holds several such tensors. But each log-probability depends on one row of hidden states only, so its gradient
`u = (onehot - softmax(z)) W / temperature` is made in the forward pass, while the chunk's logits are there, and the
backward pass is `g * u`: two matrix products with W instead of the three of recomputing, and what is kept has the
hidden states' shape, in float32. Liger's fused cross-entropy does so for its loss (arXiv 2410.10989); made for each
token, such a gradient serves any loss.
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from rft.actor.device import on_triton
from rft.actor.products import wide_product
from rft.record.activations import LOGIT_ROWS

ROWS = LOGIT_ROWS
ENTROPIES = ("none", "metric", "gradient")
BLOCK = 2048  # logits that a program of the kernels reads at once
LOWEST = -1e30  # below every logit, and finite, so that no difference of two is NaN


def log_probs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    temperature: float = 1.0,
    float32_logits: bool = True,
    entropy: str = "none",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probability of each row's label, and the entropy of each row's distribution, in nats.

    Plain torch where no kernel runs (`on_triton`).

    Args:
        hidden: (N, hidden), in the weight's dtype; the only input that gets a gradient.
        weight: (vocabulary, hidden) of a frozen head without bias.
        labels: (N,) int64, below `vocabulary`. A GPU does not check that: another label reads other memory.
        temperature: the logits are divided by it.
        float32_logits: logits as the matrix product summed them; otherwise rounded to the weight's dtype first.
        entropy: "none", "metric" (without a gradient) or "gradient".

    Returns:
        log-probabilities (N,) and entropies (N,) or None; float32, or float64 from float64 operands.

    Raises:
        ValueError: the weight asks for a gradient, labels are not one a row, or `entropy` is another word.
    """
    if weight.requires_grad:
        raise ValueError("log_probs: found a head that requires a gradient, wanted a frozen one; it would get none")
    if labels.shape != hidden.shape[:1]:
        raise ValueError(
            f"log_probs: found labels {tuple(labels.shape)} for hidden states {tuple(hidden.shape)}, wanted one a row"
        )
    if entropy not in ENTROPIES:
        raise ValueError(f"log_probs: found entropy {entropy!r}, wanted one of {', '.join(ENTROPIES)}")
    # Within a Function's forward the grad mode is off, and needs_input_grad does not know of no_grad.
    keep = hidden.requires_grad and torch.is_grad_enabled()
    return _LogProbs.apply(hidden, weight, labels, float(temperature), float32_logits, entropy, keep)


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, labels, temperature, float32_logits, entropy, keep):
        wide = torch.promote_types(weight.dtype, torch.float32)
        scored = hidden.new_empty(len(hidden), dtype=wide)
        entropies = torch.empty_like(scored) if entropy != "none" else None
        kinds = (keep, keep and entropy == "gradient")  # gradients of the log-probability, of the entropy
        units = [torch.empty_like(hidden, dtype=wide) if kind else None for kind in kinds]
        for first in range(0, len(hidden), ROWS):
            part = slice(first, first + ROWS)
            parts = [None if each is None else each[part] for each in (scored, entropies, *units)]
            _score(hidden[part], weight, labels[part], temperature, float32_logits, *parts)
        ctx.save_for_backward(*units)
        ctx.dtype = hidden.dtype
        if entropies is not None and entropy != "gradient":
            ctx.mark_non_differentiable(entropies)
        return scored, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, grad_entropy):
        unit, entropy_unit = ctx.saved_tensors
        grad_hidden = grad[:, None] * unit
        if entropy_unit is not None:
            grad_hidden.addcmul_(grad_entropy[:, None], entropy_unit)
        return grad_hidden.to(ctx.dtype), None, None, None, None, None, None


def _score(hidden, weight, labels, temperature, float32_logits, scored, entropies, unit, entropy_unit) -> None:
    """Fill one chunk of the four outputs, of which all but `scored` may be None. Its logits die with this call."""
    logits = wide_product(hidden, weight.T) if float32_logits else hidden @ weight.T
    kernels = (_statistics, _gradient)
    statistics, gradient = kernels if on_triton(logits) else (reference_statistics, reference_gradient)
    found, lse, entropy = statistics(logits, labels, temperature)
    scored.copy_(found)
    if entropies is not None:
        entropies.copy_(entropy)
    if entropy_unit is not None:
        rows = gradient(logits, labels, lse, entropy, temperature, weight.dtype, True)
        entropy_unit.copy_(wide_product(rows, weight))
        del rows  # before the other gradient takes its place
    if unit is not None:
        unit.copy_(wide_product(gradient(logits, labels, lse, entropy, temperature, weight.dtype, False), weight))


def reference_statistics(
    logits: torch.Tensor, labels: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities of the labels, logs of the sums of exponentials, and entropies, each (rows,), from logits.

    What the kernel computes, in plain torch: in float32, or in float64 of float64 logits.
    """
    z = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    lse = z.logsumexp(1)
    log_p = z - lse[:, None]
    return log_p.gather(1, labels[:, None])[:, 0], lse, -(log_p.exp() * log_p).sum(1)


def reference_gradient(
    logits: torch.Tensor,
    labels: torch.Tensor,
    lse: torch.Tensor,
    entropy: torch.Tensor,
    temperature: float,
    dtype: torch.dtype,
    of_entropy: bool,
) -> torch.Tensor:
    """d(log-probability of the label, or entropy) / d(logit before the temperature), (rows, vocabulary) in `dtype`.

    `onehot - p`, or `-p (log p + entropy)`, over the temperature.
    """
    log_p = logits.to(lse.dtype) / temperature - lse[:, None]
    p = log_p.exp()
    if of_entropy:
        return (-p * (log_p + entropy[:, None]) / temperature).to(dtype)
    return (torch.zeros_like(p).scatter_(1, labels[:, None], 1.0).sub_(p) / temperature).to(dtype)


def _statistics(
    logits: torch.Tensor, labels: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`reference_statistics` by a kernel: the logits are read once."""
    rows, vocabulary = logits.shape
    found, lse, entropy = logits.new_empty((3, rows), dtype=torch.float32)
    _statistics_kernel[(rows,)](
        logits, labels, found, lse, entropy, vocabulary, temperature, LOWEST=LOWEST, BLOCK=BLOCK, num_warps=8
    )
    return found, lse, entropy


def _gradient(
    logits: torch.Tensor,
    labels: torch.Tensor,
    lse: torch.Tensor,
    entropy: torch.Tensor,
    temperature: float,
    dtype: torch.dtype,
    of_entropy: bool,
) -> torch.Tensor:
    """`reference_gradient` by a kernel: the logits are read once, the result is written once."""
    rows, vocabulary = logits.shape
    out = torch.empty_like(logits, dtype=dtype)
    _gradient_kernel[(triton.cdiv(vocabulary, BLOCK), rows)](
        logits,
        labels,
        lse,
        entropy,
        out,
        vocabulary,
        temperature,
        OF_ENTROPY=of_entropy,
        LOWEST=LOWEST,
        BLOCK=BLOCK,
        num_warps=8,
    )
    return out


@triton.jit
def _statistics_kernel(
    logits, labels, log_probs, lse, entropies, vocabulary, temperature, LOWEST: tl.constexpr, BLOCK: tl.constexpr
):
    """One program a row. Each lane keeps a maximum and sums relative to it; they are joined once, at the end."""
    row = tl.program_id(0)
    start = logits + row.to(tl.int64) * vocabulary
    highest = tl.full((BLOCK,), LOWEST, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)  # of exp(z - highest)
    weighted = tl.zeros((BLOCK,), tl.float32)  # of exp(z - highest) (z - highest)
    for first in range(0, vocabulary, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        z = tl.load(start + columns, mask=columns < vocabulary, other=LOWEST).to(tl.float32) / temperature
        higher = tl.maximum(highest, z)
        shift = highest - higher
        shrink = tl.exp(shift)
        power = tl.exp(z - higher)
        weighted = (weighted + total * shift) * shrink + power * (z - higher)
        total = total * shrink + power
        highest = higher
    peak = tl.max(highest, 0)
    shift = highest - peak
    shrink = tl.exp(shift)
    weights = tl.sum((weighted + total * shift) * shrink, 0)
    powers = tl.sum(total * shrink, 0)
    log_sum = tl.log(powers)
    label = tl.load(labels + row)
    z = tl.load(start + label).to(tl.float32) / temperature
    tl.store(log_probs + row, (z - peak) - log_sum)
    tl.store(lse + row, peak + log_sum)
    tl.store(entropies + row, log_sum - weights / powers)


@triton.jit
def _gradient_kernel(
    logits,
    labels,
    lse,
    entropies,
    out,
    vocabulary,
    temperature,
    OF_ENTROPY: tl.constexpr,
    LOWEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a block of a row."""
    row = tl.program_id(1)
    start = row.to(tl.int64) * vocabulary
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < vocabulary
    z = tl.load(logits + start + columns, mask=inside, other=LOWEST).to(tl.float32) / temperature
    log_p = z - tl.load(lse + row)
    p = tl.exp(log_p)
    if OF_ENTROPY:
        slope = -p * (log_p + tl.load(entropies + row))
    else:
        slope = tl.where(columns == tl.load(labels + row), 1.0, 0.0) - p
    tl.store(out + start + columns, (slope / temperature).to(out.dtype.element_ty), mask=inside)
