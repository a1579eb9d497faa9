"""vLLM worker side of merged LoRA serving: each adapted weight is rebuilt from its pristine copy.

`W = dtype(fp32(W0) + s · B @ A)`, from W0 every time: adding increments in place would drift and lose small updates
(seen by others: adapters accumulated silently until they rebuilt from cached base weights). Rounding to bf16 loses
updates below half a unit in the last place of W0; `rft.hooks.lora_exact_engine` keeps them.
"""

import torch
from vllm.model_executor.layers.utils import dispatch_unquantized_gemm

from rft.hooks.kept_share import KeptShare, probe_inputs, probed


@torch.no_grad()
def rebuild(targets: list, pristine: dict[str, torch.Tensor]) -> tuple[float | None, float]:
    """Write every target's rows of its weight.

    Args:
        targets: `rft.hooks.lora_worker.Target`s.
        pristine: parameter name to W0, filled at the first call.

    Returns:
        (share of the update that the weights keep: its inner product with what was kept of it, over that with itself,
        None for a zero update; share of the touched parameters' elements that differ from the pristine ones).
    """
    touched = {target.name: target.module.weight for target in targets}
    for name, param in touched.items():
        if name not in pristine:
            pristine[name] = param.data.clone()
    kept = torch.zeros((), dtype=torch.float64, device=targets[0].a.device)
    total, changed = torch.zeros_like(kept), torch.zeros_like(kept)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # TF32 would drop half of the mantissa of B @ A
    try:
        for target in targets:
            old, param = pristine[target.name][target.rows], target.module.weight
            base = old.float()
            # This rank's share only. The sum over the LoRA rank is never split.
            update = (target.b.float() @ target.a.float()) * target.scaling
            new = (base + update).to(param.dtype)
            param.data[target.rows].copy_(new)
            kept += ((new.float() - base) * update).sum(dtype=torch.float64)
            total += (update * update).sum(dtype=torch.float64)
            changed += (new != old).sum()
    finally:
        torch.set_float32_matmul_precision(precision)
    kept, total, changed = torch.stack([kept, total, changed]).tolist()
    return kept / total if total else None, changed / sum(param.numel() for param in touched.values())


@torch.no_grad()
def output_shares(targets: list, pristine: dict[str, torch.Tensor]) -> tuple[float | None, float]:
    """`KeptShare.shares` of the engine's own layers against the pristine weights, over the targets of `probed`."""
    share, gemm = KeptShare(), dispatch_unquantized_gemm()
    for index, target in enumerate(probed(targets)):
        layer, old = target.module, pristine[target.name]
        x = probe_inputs(old.shape[1], old, index)
        on, off = layer.quant_method.apply(layer, x, None), gemm(layer, x, old, None)
        share.add(x, target.a * target.scaling, target.b, (on.float() - off.float())[:, target.rows])
    return share.shares()
