"""Logits in float32 from a bf16 model, in trainer and engine: the matrix product's float32 sums are not rounded.

Both stacks round the logits to bf16 and cast them back: at 16 to 32 that is ±0.06 nats on every uncertain token, other
ones on each side. The operands stay bf16; what is kept is what the kernel has summed anyway. Others fixed it likewise
(MiniMax-M1, arXiv 2506.13585, section 3.2; prime-rl #2438).
"""

import torch

from rft.actor.products import wide_product
from rft.hooks import cpu_linear


def engine_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`x @ weight.T` in float32; on a CPU with `cpu_linear.SWITCH` exact sums, rounded once: each row by itself."""
    if not x.is_cuda and cpu_linear.rows_alone():
        return cpu_linear.in_float64(x.float(), weight.float())
    return wide_product(x, weight.T)


class _Float32Logits(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return wide_product(x, weight.T)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad = grad.to(weight.dtype)  # as it was when the logits were bf16
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        return grad_x, grad.T @ x if ctx.needs_input_grad[1] else None


class Float32Linear(torch.nn.Linear):
    """A bias-free linear layer in bf16 or fp16 with float32 outputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Float32Logits.apply(x.flatten(0, -2), self.weight).view(*x.shape[:-1], -1)


def install(model: torch.nn.Module) -> None:
    """Give a transformers (or PEFT) causal language model logits in float32.

    Raises:
        ValueError: its head is no plain linear layer.
    """
    head = model.get_output_embeddings()
    if type(head) is not torch.nn.Linear or head.bias is not None:
        raise ValueError(
            f"--head_dtype float32: the model's head is a {type(head).__name__}; wanted a linear layer without bias; "
            "use --head_dtype model"
        )
    head.__class__ = Float32Linear


def in_engine(model: torch.nn.Module) -> None:
    """The same for a model in vLLM, before it is compiled or captured.

    Raises:
        ValueError: its head is quantised.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    class Float32Head(UnquantizedEmbeddingMethod):
        def apply(self, layer, x, bias=None):
            logits = engine_product(x, layer.weight)
            return logits if bias is None else logits + bias

    head = model.lm_head
    if type(head.quant_method) is not UnquantizedEmbeddingMethod:
        raise ValueError(
            f"--head_dtype float32: the engine's head has {type(head.quant_method).__name__}; wanted an "
            "unquantised one; use --head_dtype model"
        )
    head.quant_method = Float32Head()
