"""vLLM's side of LoRA with one rounding: adapted layers have room for an adapter beside their weights from the start.

The formula is `rft.hooks.lora_exact`'s. A linear layer of (out, in) becomes one buffer: `[W | B]` of (out, in + width),
and under it `A'` of (width, in). W stays where it is, a sync copies A and B, and no address changes, so CUDA graphs and
compiled code stay valid. A packed layer (qkv) has a block of columns for each of its parts, zero in the rows of the
others.

Tensor parallelism needs no collective of its own: a column-parallel layer holds its rows of B; a row-parallel one holds
its columns of A, and the partial `x A'ᵀ` goes through B into the sum over ranks that is made anyway.
"""

import os

import torch
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.utils import dispatch_unquantized_gemm
from vllm.platforms import current_platform

from rft.hooks.kept_share import KeptShare, probe_inputs, probed

ALIGNMENT = 8  # elements: 16 bytes, which GEMM kernels want of every row and every block of columns


class ExactLinearMethod(UnquantizedLinearMethod):
    """`[x, x A'ᵀ] [W | B]ᵀ + bias`, by the kernels that an unquantised layer of this platform uses."""

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        gemm = dispatch_unquantized_gemm()
        beside = gemm(layer, x, layer.lora_a, None)
        return gemm(layer, torch.cat((x, beside), -1), layer.weight_and_b, bias)

    def without_adapter(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """What `apply` gives with a zero adapter, by the same kernel."""
        nothing = x.new_zeros(*x.shape[:-1], layer.lora_a.shape[0])
        return dispatch_unquantized_gemm()(layer, torch.cat((x, nothing), -1), layer.weight_and_b, bias)


class CudaExactLinearMethod(ExactLinearMethod):
    """The same by `rft.hooks.wide_linear`, which is faster for the few rows of decoding."""

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        out = torch.ops.rft.wide_linear(x.flatten(0, -2), layer.wide, layer.lora_a.shape[0], bias)
        return out.view(*x.shape[:-1], -1)

    def without_adapter(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        from rft.hooks import wide_linear

        if x.shape[0] > wide_linear.FEW_ROWS:
            return super().without_adapter(layer, x, bias)
        return wide_linear.without_adapter(x, layer.wide, layer.lora_a.shape[0], bias)


def widen(model: torch.nn.Module, rank: int, modules: list[str]) -> None:
    """Make room for an adapter in a loaded model; until the first sync it computes as the base does.

    Args:
        model: as vLLM has loaded it, before it is compiled or captured.
        rank: the largest rank that will be served.
        modules: names of the adapted layers as PEFT has them, e.g. q_proj; `all-linear` for every linear layer.

    Raises:
        ValueError: no layer of these names, or one whose weights are quantised.
    """
    packed = getattr(model, "packed_modules_mapping", {})
    found = 0
    for name, layer in model.named_modules():
        leaf = name.rpartition(".")[2]
        parts = packed.get(leaf, [leaf])
        if not isinstance(layer, LinearBase) or not ("all-linear" in modules or set(parts) & set(modules)):
            continue
        if type(layer.quant_method) is not UnquantizedLinearMethod:
            raise ValueError(
                f"--lora_serving exact: {name} has {type(layer.quant_method).__name__} in the engine; wanted an "
                "unquantised layer; serve by --lora_serving merged, or adapt other --target_modules"
            )
        _widen(layer, rank, len(parts))
        found += 1
    if not found:
        raise ValueError(f"--lora_serving exact: the engine's model has no linear layer among {', '.join(modules)}")


def _widen(layer: LinearBase, rank: int, parts: int) -> None:
    block = -(-rank // ALIGNMENT) * ALIGNMENT
    (rows, features), width = layer.weight.shape, parts * block
    wide = layer.weight.new_zeros(rows + width, features + width)
    wide[:rows, :features] = layer.weight
    layer.weight.data = wide[:rows, :features]  # the same parameter, so that loading weights again still finds it
    for name, view in {"wide": wide, "weight_and_b": wide[:rows], "lora_a": wide[rows:, :features]}.items():
        layer.register_buffer(name, view, persistent=False)
    layer.lora_block = block
    layer.quant_method = _method()


def _method() -> ExactLinearMethod:
    # vLLM's batch-invariant mode replaces the products of torch by its own, which know no float32 result. Asked of the
    # environment, as vLLM does: its function for it is gone from 0.19 on.
    if not current_platform.is_cuda() or os.environ.get("VLLM_BATCH_INVARIANT", "0") != "0":
        return ExactLinearMethod()
    from rft.hooks import wide_linear  # noqa: F401  registers the op; a CPU platform may have no Triton

    return CudaExactLinearMethod()


def is_wide(layer: torch.nn.Module) -> bool:
    """Whether `widen` has made room in this layer."""
    return hasattr(layer, "weight_and_b")


@torch.no_grad()
def write(targets: list) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Copy every A and B of an adapter into its layer.

    Args:
        targets: `rft.hooks.lora_worker.Target`s with this rank's `a` and `b`.

    Returns:
        For each target the parts of its layer that hold them: A with the scaling in it, and B.

    Raises:
        ValueError: a layer has no room for it. Nothing has been written then.
    """
    for target in targets:
        room = getattr(target.module, "lora_block", 0)
        if target.a.shape[0] > room:
            raise ValueError(
                f"LoRA sync: {target.checkpoint_name} has an adapter of rank {target.a.shape[0]}, the engine has room "
                f"for {room} there; start the engine with that rank, and with the layer among its target modules"
            )
    # A call for all of them: a sync has some hundred targets, and the launches cost more than the copies.
    scaled = torch._foreach_mul([target.a for target in targets], [target.scaling for target in targets])
    used = [_used(target) for target in targets]
    places = [part for parts in zip(*used, strict=True) for part in parts]
    torch._foreach_copy_(places, [*scaled, *(target.b for target in targets)])
    for target in targets:
        rank = target.a.shape[0]
        if rank < target.module.lora_block:  # what an adapter of a higher rank has left
            a, b = _blocks(target)
            a[rank:] = 0
            b[:, rank:] = 0
    return used


def held(used: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """What the layers hold now, read back from the parts that `write` gives: every A, flat, and every B."""
    a, b = zip(*used, strict=True)
    return torch.cat([part.flatten() for part in a]), torch.cat([part.flatten() for part in b])


def changed_share(b: torch.Tensor) -> float:
    """Share of the elements of B that are not zero, as they are in the base."""
    return b.count_nonzero().item() / b.numel()


@torch.no_grad()
def output_shares(targets: list) -> tuple[float | None, float]:
    """`KeptShare.shares` of the engine's own layers, over the targets of `probed`."""
    share = KeptShare()
    for index, target in enumerate(probed(targets)):
        layer = target.module
        x = probe_inputs(layer.lora_a.shape[1], layer.lora_a, index)
        on = layer.quant_method.apply(layer, x, None)
        off = layer.quant_method.without_adapter(layer, x, None)
        share.add(x, *_used(target), (on.float() - off.float())[:, target.rows])
    return share.shares()


def _used(target) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = _blocks(target)
    return a[: target.a.shape[0]], b[:, : target.b.shape[1]]


def _blocks(target) -> tuple[torch.Tensor, torch.Tensor]:
    """The part of a layer's `lora_a` (block, in) and of its `[W | B]` (rows of this part, block) for one projection."""
    layer = target.module
    start, features = target.part * layer.lora_block, layer.lora_a.shape[1]
    columns = slice(features + start, features + start + layer.lora_block)
    return layer.lora_a[start : start + layer.lora_block], layer.weight_and_b[target.rows, columns]
