"""vLLM worker side of the LoRA weight sync: rebuild each adapted weight from its pristine copy.

`W = dtype(fp32(W0) + scaling · B @ A)`, from W0 every time: adding increments in place would drift and lose small
updates (seen in the reference system: adapters accumulated silently until it rebuilt from cached base weights).
"""

import time

import torch
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)

from rft.hooks.lora_manifest import buffer_from_bytes, layer_matrices

FULL = slice(None)
CHECKSUM_CHUNK = 1 << 22  # elements; 32 MB of 64-bit integers


def apply_lora_or_refuse(worker, manifest: dict, payload: bytes) -> dict:
    """`apply_lora`, with a refusal as the receipt `{"refused": message}`.

    An exception in one tensor-parallel worker would leave the other workers' answers in vLLM's queues, to be read as
    the answers to the next call (seen with its multiprocessing executor); the engine raises instead.
    """
    try:
        return apply_lora(worker, manifest, payload)
    except ValueError as refusal:
        return {"refused": str(refusal)}


def apply_lora(worker, manifest: dict, payload: bytes) -> dict:
    """Set every adapted weight of this worker's model and report what was done.

    Args:
        worker: the vLLM worker; pristine copies of the touched parameters are kept on it from the first call on.
        manifest: see `rft.hooks.lora_manifest`.
        payload: the flat buffer's bytes.

    Returns:
        The receipt: `version`, `layers`, `tp_rank`, `checksum` (of the touched parameters), `kept_share` (share of
        the update that survives rounding to the weight's dtype; None for a zero update), `changed_share` (share of
        the touched parameters' elements that differ from the base's), `seconds` by phase.

    Raises:
        ValueError: an unknown name, a wrong shape, or another set of layers than at the first sync. Nothing has been
            written then.
    """
    marks = [time.perf_counter()]
    model = worker.model_runner.get_model()
    modules = dict(model.named_modules())
    targets = [resolve(model, modules, layer) for layer in manifest["layers"]]
    names = [layer["name"] for layer in manifest["layers"]]
    known = getattr(worker, "rft_adapted_names", names)
    if set(names) != set(known):
        difference = sorted(set(names) ^ set(known))
        raise ValueError(f"LoRA sync: the adapter covers other layers than at the first sync: {difference[0]}")
    marks.append(time.perf_counter())

    buffer = buffer_from_bytes(manifest, payload, next(model.parameters()).device)
    marks.append(time.perf_counter())

    pristine = getattr(worker, "rft_pristine", None)
    if pristine is None:
        params = {name: param for name, param, *_ in targets}
        pristine = worker.rft_pristine = {name: param.data.clone() for name, param in params.items()}
        worker.rft_adapted_names = names
    kept, total, changed = _rebuild(manifest, buffer, targets, pristine)
    _synchronize(buffer.device)
    marks.append(time.perf_counter())

    touched = {name: param for name, param, *_ in targets}
    digest = checksum([touched[name].data for name in sorted(touched)])
    marks.append(time.perf_counter())
    phases = ("resolve", "copy", "apply", "checksum")
    return {
        "version": manifest["version"],
        "layers": len(names),
        "tp_rank": targets[0][-1],
        "checksum": digest,
        "kept_share": kept / total if total else None,
        "changed_share": changed / sum(param.numel() for param in touched.values()),
        "seconds": {phase: b - a for phase, a, b in zip(phases, marks, marks[1:], strict=False)},
    }


@torch.no_grad()
def _rebuild(manifest: dict, buffer: torch.Tensor, targets: list, pristine: dict) -> list[float]:
    """Write every target; return the update's inner product with what was kept of it, and with itself, and the number
    of elements that differ from the pristine ones."""
    kept = torch.zeros((), dtype=torch.float64, device=buffer.device)
    total, changed = torch.zeros_like(kept), torch.zeros_like(kept)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # TF32 would drop half of the mantissa of B @ A
    try:
        for layer, (name, param, rows, b_rows, a_columns, _) in zip(manifest["layers"], targets, strict=True):
            a, b = layer_matrices(layer, buffer)
            base = pristine[name][rows].float()
            # Sliced before the product: a rank computes only its own share. The sum over the LoRA rank is never split.
            update = (b[b_rows].float() @ a[:, a_columns].float()) * layer["scaling"]
            new = (base + update).to(param.dtype)
            param.data[rows].copy_(new)
            kept += ((new.float() - base) * update).sum(dtype=torch.float64)
            total += (update * update).sum(dtype=torch.float64)
            changed += (new != pristine[name][rows]).sum()
    finally:
        torch.set_float32_matmul_precision(precision)
    return torch.stack([kept, total, changed]).tolist()


def resolve(model: torch.nn.Module, modules: dict[str, torch.nn.Module], layer: dict) -> tuple:
    """Find the parameter of one adapter layer and this rank's part of it.

    Checkpoint names become vLLM's by the model's own mapper and packed modules, so that no name table is kept here.

    Returns:
        (parameter name, parameter, its rows to write, rows of B to use, columns of A to use, tensor-parallel rank).

    Raises:
        ValueError: unknown name, or shapes that do not fit the layer.
    """
    checkpoint_name = layer["name"]
    name = (
        model.hf_to_vllm_mapper._map_name(checkpoint_name) if hasattr(model, "hf_to_vllm_mapper") else checkpoint_name
    )
    path = (name or "").removesuffix(".weight")
    parent, _, leaf = path.rpartition(".")
    shard = None
    for packed, parts in getattr(model, "packed_modules_mapping", {}).items():
        if leaf in parts and packed != leaf:
            path, shard = f"{parent}.{packed}", parts.index(leaf)
    module = modules.get(path)
    if module is None or not isinstance(getattr(module, "weight", None), torch.nn.Parameter):
        raise ValueError(f"LoRA sync: the adapter names {checkpoint_name}, the engine's model has no parameter for it")
    rows, b_rows, a_columns, wanted = _rank_slices(module, shard, checkpoint_name)
    found = (layer["out_features"], layer["in_features"])
    if found != wanted:
        raise ValueError(f"LoRA sync: {checkpoint_name} has shape {found} in the adapter, {wanted} in the engine")
    local = (
        getattr(module, "output_size_per_partition", module.output_size),
        getattr(module, "input_size_per_partition", module.input_size),
    )
    if tuple(module.weight.shape) != local or module.weight.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(
            f"LoRA sync: {checkpoint_name} is {module.weight.dtype} {tuple(module.weight.shape)} in the engine; "
            f"the sync writes unquantised weights of shape {local} only"
        )
    return f"{path}.weight", module.weight, rows, b_rows, a_columns, module.tp_rank


def _rank_slices(module, shard: int | None, name: str) -> tuple[slice, slice, slice, tuple[int, int]]:
    """(parameter rows, B rows, A columns, full (out, in) shape) of a linear layer, or of one part of a packed one."""
    if isinstance(module, QKVParallelLinear) and shard is not None:
        key = "qkv"[shard]
        size, start = module._get_shard_size_mapping(key), module._get_shard_offset_mapping(key)
        # Several ranks hold the same key/value head when there are fewer of them than ranks.
        rank = module.tp_rank if key == "q" else module.tp_rank // module.num_kv_head_replicas
        heads = module.total_num_heads if key == "q" else module.total_num_kv_heads
        head_size = module.v_head_size if key == "v" else module.head_size
        return _span(start, size), _span(rank * size, size), FULL, (heads * head_size, module.input_size)
    if isinstance(module, MergedColumnParallelLinear) and shard is not None:
        size = module.output_sizes[shard] // module.tp_size
        start = sum(module.output_sizes[:shard]) // module.tp_size
        shape = (module.output_sizes[shard], module.input_size)
        return _span(start, size), _span(module.tp_rank * size, size), FULL, shape
    if shard is None and isinstance(module, RowParallelLinear):
        size = module.input_size_per_partition
        return FULL, FULL, _span(module.tp_rank * size, size), (module.output_size, module.input_size)
    if shard is None and isinstance(module, ReplicatedLinear):
        return FULL, FULL, FULL, (module.output_size, module.input_size)
    if shard is None and type(module) is ColumnParallelLinear:
        size = module.output_size_per_partition
        return FULL, _span(module.tp_rank * size, size), FULL, (module.output_size, module.input_size)
    raise ValueError(f"LoRA sync: {name} lands in a {type(module).__name__}, which the sync does not know how to slice")


def _span(start: int, size: int) -> slice:
    return slice(start, start + size)


def checksum(tensors: list[torch.Tensor]) -> str:
    """A 64-bit position-sensitive checksum of 2-byte tensors, as 16 hex digits.

    Integer arithmetic modulo 2**64, so the value does not depend on the device or on the order of summation; it runs
    where the tensor lives, since copying a gigabyte of weights to hash them would cost more than the sync.
    """
    # Few chunks, for each costs kernel launches; small ones, for the 64-bit temporaries must fit beside an engine that
    # has filled the device. Their sums are fetched together: a transfer each would cost more than the arithmetic.
    places = torch.arange(1, CHECKSUM_CHUNK + 1, device=tensors[0].device, dtype=torch.int64) * 0x5851F42D4C957F2D
    sums = []
    for tensor in tensors:
        for part in tensor.contiguous().view(torch.int16).flatten().split(CHECKSUM_CHUNK):
            sums.append(part.to(torch.int64).add_(0x8000).mul_(places[: part.numel()]).sum())
    total = 0
    for value in torch.stack(sums).tolist():
        total = (total * 0x5851F42D4C957F2D + value + 1) % (1 << 64)
    return f"{total:016x}"


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
