"""LoRA layers with one rounding: `y = dtype([x, x A'ᵀ] [W | B]ᵀ + bias)`, accumulated in float32, with `A' = s·A`.

PEFT adds the adapter's output, already rounded to bf16, to a base output that is rounded too, and rounds the sum. An
update below half a unit in the last place of the base output is lost, as it is in weights merged in bf16: of 24 updates
of 5e-7 both keep 7%. Here B is further columns beside W and `x A'ᵀ` as further inputs beside x, so one matrix
product adds base and adapter in float32 and rounds once. The engine computes the same (`rft.hooks.lora_exact_engine`).
`s` goes into A because the engine then needs no multiplication a token; where it is a power of two that changes no bit.
"""

import torch
from deepspeed.utils import set_z3_leaf_module
from peft.tuners import lora

from rft.hooks.kept_share import KeptShare, probe_inputs


class _OneRounding(torch.autograd.Function):
    """`exact_linear` of (tokens, in). Saves x and the r inputs beside it; W and B are widened again going backward."""

    @staticmethod
    def forward(ctx, x, weight, bias, a, b, scaling):
        beside = x @ (a * scaling).T
        ctx.save_for_backward(x, beside, weight, a, b)
        ctx.scaling = scaling
        x, widened = torch.cat((x, beside), 1), torch.cat((weight, b), 1).T
        # By name, and in two dimensions: `zero.Init` replaces `functional.linear`, and rounds before it adds the bias.
        return x @ widened if bias is None else torch.addmm(bias, x, widened)

    @staticmethod
    def backward(ctx, grad):
        x, beside, weight, a, b = ctx.saved_tensors
        grad_beside = grad @ b
        # The same widening the other way: the gradients of base and adapter are added before they are rounded.
        widened = torch.cat((weight, a * ctx.scaling), 0)
        grad_x = torch.cat((grad, grad_beside), 1) @ widened if ctx.needs_input_grad[0] else None
        return grad_x, None, None, (grad_beside.T @ x) * ctx.scaling, grad.T @ beside, None


def exact_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    a: torch.Tensor,
    b: torch.Tensor,
    scaling: float,
) -> torch.Tensor:
    """A frozen linear layer and its adapter in one matrix product, (..., out), in the weight's dtype.

    Args:
        x: inputs (..., in), in the weight's dtype.
        weight, bias: of the base layer, (out, in) and (out,); neither gets a gradient.
        a, b: the adapter's matrices, (rank, in) and (out, rank).
        scaling: LoRA's alpha / rank.

    Raises:
        ValueError: the base weight asks for a gradient, which it would not get.
    """
    if weight.requires_grad:
        raise ValueError("an exact LoRA layer trains its adapter only; found a base weight that requires a gradient")
    a, b = a.to(weight.dtype), b.to(weight.dtype)
    return _OneRounding.apply(x.flatten(0, -2), weight, bias, a, b, scaling).view(*x.shape[:-1], -1)


class ExactLinear(lora.Linear):
    """PEFT's LoRA layer over `torch.nn.Linear`, with `exact_linear` as its forward pass; files and names stay PEFT's.

    With the adapter off it is the base layer, bit for bit.
    """

    def operands(self) -> tuple | None:
        """What `exact_linear` takes after x; `rft.actor.qkv` takes it of several layers. None with the adapter off."""
        if self.disable_adapters or self.merged:
            return None
        (name,) = self.active_adapters
        matrices = self.lora_A[name].weight, self.lora_B[name].weight
        return self.base_layer.weight, self.base_layer.bias, *matrices, self.scaling[name]

    def forward(self, x: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        operands = self.operands()
        return self.base_layer(x) if operands is None else exact_linear(x, *operands)


def install(model: torch.nn.Module) -> None:
    """Give every LoRA layer of a PEFT model the forward pass with one rounding; say how many could not get it.

    Left alone is what the formula does not cover: a quantised base layer, LoRA dropout (the engine has none), DoRA.
    The layer becomes a ZeRO-3 leaf, gathered whole: its forward pass reads the parameters of the layers inside it.
    """
    layers = [m for m in model.modules() if isinstance(m, lora.LoraLayer)]
    plain = [m for m in layers if type(m) is lora.Linear and _is_plain(m)]
    for layer in plain:
        layer.__class__ = ExactLinear
        set_z3_leaf_module(layer, True)
    if len(plain) < len(layers):
        print(
            f"LoRA: {len(layers) - len(plain)} of {len(layers)} layers keep PEFT's forward pass, which loses small "
            "updates (a quantised base, dropout or DoRA)",
            flush=True,
        )


def _is_plain(layer: lora.Linear) -> bool:
    dropout = any(type(d) is not torch.nn.Identity for d in layer.lora_dropout.values())
    return type(layer.get_base_layer()) is torch.nn.Linear and not dropout and not any(layer.use_dora.values())


@torch.no_grad()
def trainer_kept_share(layers: list[ExactLinear]) -> float | None:
    """`KeptShare` of the trainer's own forward pass over some layers, whose parameters must be gathered.

    None for a zero adapter, and without layers.
    """
    share = KeptShare()
    for index, layer in enumerate(layers):
        (name,) = layer.active_adapters
        a, b, scaling = layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name]
        base = layer.base_layer.weight, layer.base_layer.bias
        x = probe_inputs(a.shape[1], base[0], index)
        # A zero B instead of the base layer: another kernel would round elsewhere, and drown a small update in that.
        on, off = (exact_linear(x, *base, a, matrix, scaling) for matrix in (b, torch.zeros_like(b)))
        share.add(x, a * scaling, b, on.float() - off.float())
    return share.shares()[0] if layers else None
