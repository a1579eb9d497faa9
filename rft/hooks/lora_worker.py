"""vLLM worker side of the LoRA weight sync: put an adapter into the layers it belongs to, and report what is held.

Where the engine was started with room for it, A and B are copied beside the weight, which stays as it is
(`rft.hooks.lora_exact_engine`). Elsewhere the weight is rebuilt from a pristine copy (`rft.hooks.lora_merged`).
"""

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

import torch
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)

from rft.hooks import adapter_memory, lora_exact_engine, lora_merged
from rft.hooks.lora_manifest import buffer_from_bytes, layer_matrices

if TYPE_CHECKING:
    from vllm.v1.worker.worker_base import WorkerBase

FULL = slice(None)
CHECKSUM_CHUNK = 1 << 22  # elements; 32 MB of 64-bit integers
CHECKSUM_FACTOR = 0x5851F42D4C957F2D  # odd, of a well-known linear congruential generator


class Target(NamedTuple):
    """This rank's share of one adapted projection."""

    checkpoint_name: str
    name: str  # of the parameter in the engine's model
    module: torch.nn.Module
    part: int  # which of a packed layer's projections; 0 elsewhere
    rows: slice  # of the module's weight
    a: torch.Tensor  # (rank, in of this rank)
    b: torch.Tensor  # (out of this rank, rank)
    scaling: float
    tp_rank: int


def apply_lora_or_refuse(worker: "WorkerBase", manifest: dict, payload: bytes | dict) -> dict:
    """`apply_lora`, with a refusal as the receipt `{"refused": message}`.

    An exception in one tensor-parallel worker would leave the other workers' answers in vLLM's queues, to be read as
    the answers to the next call (seen with its multiprocessing executor); the engine raises instead.
    """
    try:
        return apply_lora(worker, manifest, payload)
    except ValueError as refusal:
        return {"refused": str(refusal)}


def apply_lora(worker: "WorkerBase", manifest: dict, payload: bytes | dict) -> dict:
    """Serve an adapter from now on, and report what was done.

    Args:
        worker: the vLLM worker; what it served before is kept on it.
        manifest: see `rft.hooks.lora_manifest`.
        payload: the flat buffer's bytes, or where they lie, see `rft.hooks.adapter_memory`.

    Returns:
        The receipt, or `{"unmapped": True}` where the payload's memory is not this machine's:
        `version`, `layers`, `tp_rank`, `serving` (`exact` or `merged`), `seconds` by phase,
        `checksum`: of the adapted layers, base and adapter;
        `kept_share`: of the update in the weights, 1 where A and B are served as they are, in the engine's dtype; None
        for a zero update;
        `output_kept_share`, `output_moved_share`: in the layers' outputs, see `rft.hooks.kept_share`;
        `changed_share`: of the elements that hold the adapter, those that differ from the base's.

    Raises:
        ValueError: an unknown name, a wrong shape, too little room, or another set of layers than at the first sync.
            Nothing has been written then.
    """
    marks = [time.perf_counter()]
    model = worker.model_runner.get_model()
    device = next(model.parameters()).device
    content = adapter_memory.read(payload) if isinstance(payload, dict) else payload
    if content is None:
        return {"unmapped": True}
    buffer = buffer_from_bytes(manifest, content, device)
    marks.append(time.perf_counter())

    modules = worker.rft_modules = getattr(worker, "rft_modules", None) or dict(model.named_modules())
    targets = [resolve(model, modules, layer, buffer) for layer in manifest["layers"]]
    names = sorted(target.checkpoint_name for target in targets)
    if difference := set(names) ^ set(getattr(worker, "rft_adapted_names", names)):
        raise ValueError(f"LoRA sync: the adapter covers other layers than at the first sync: {min(difference)}")
    marks.append(time.perf_counter())

    if any(lora_exact_engine.is_wide(target.module) for target in targets):
        serving, pristine = "exact", {}
        used = lora_exact_engine.write(targets)
        order = sorted(range(len(targets)), key=lambda index: (targets[index].name, targets[index].part))
        held = lora_exact_engine.held([used[index] for index in order])
        changed = lora_exact_engine.changed_share(held[1])
        kept = 1.0 if changed else None  # A and B are held as they came
    else:
        serving, pristine = "merged", worker.__dict__.setdefault("rft_pristine", {})
        kept, changed = lora_merged.rebuild(targets, pristine)
        held = ()
    worker.rft_adapted_names = names
    _synchronize(device)
    marks.append(time.perf_counter())
    outputs = lora_merged.output_shares(targets, pristine) if pristine else lora_exact_engine.output_shares(targets)
    marks.append(time.perf_counter())
    digest = _digest(worker, targets, held)
    marks.append(time.perf_counter())
    phases = ("copy", "resolve", "apply", "probe", "checksum")
    return {
        "version": manifest["version"],
        "layers": len(targets),
        "tp_rank": targets[0].tp_rank,
        "serving": serving,
        "checksum": digest,
        "kept_share": kept,
        "output_kept_share": outputs[0],
        "output_moved_share": outputs[1],
        "changed_share": changed,
        "seconds": {phase: b - a for phase, a, b in zip(phases, marks, marks[1:], strict=False)},
    }


def serve_from_the_start(model: torch.nn.Module, manifest: dict, buffer: torch.Tensor) -> dict:
    """`apply_lora` to a model that its worker has just loaded, before graphs are captured; the receipt.

    A later sync to the same engine is refused nothing: what it needs to know of the layers it finds again.
    """
    loaded = SimpleNamespace(model_runner=SimpleNamespace(get_model=lambda: model))
    return apply_lora(loaded, manifest, buffer.view(torch.uint8).numpy().tobytes())


def _digest(worker, targets: list[Target], held: tuple[torch.Tensor, ...]) -> str:
    """A checksum of the adapted layers as they are now, base and adapter, whatever the order of the manifest.

    `held` is what lies beside the weights, in the order of their names; empty where the adapter is in the weights.
    """
    if not held:
        return checksum(_weights(targets))
    # Nothing ever writes W again, so its checksum is taken once; A and B are few and come together.
    base = worker.rft_base_checksum = getattr(worker, "rft_base_checksum", None) or checksum(_weights(targets))
    return f"{(int(base, 16) * CHECKSUM_FACTOR + int(checksum(list(held)), 16)) % (1 << 64):016x}"


def _weights(targets: list[Target]) -> list[torch.Tensor]:
    touched = {target.name: target.module.weight.data for target in targets}
    return [touched[name] for name in sorted(touched)]


def resolve(model: torch.nn.Module, modules: dict[str, torch.nn.Module], layer: dict, buffer: torch.Tensor) -> Target:
    """Find the module of one adapter layer and this rank's part of it.

    Checkpoint names become vLLM's by the model's own mapper and packed modules, so that no name table is kept here.

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
    a, b = layer_matrices(layer, buffer)
    return Target(
        checkpoint_name=checkpoint_name,
        name=f"{path}.weight",
        module=module,
        part=shard or 0,
        rows=rows,
        a=a[:, a_columns],  # cut before any product: a rank computes its own share only
        b=b[b_rows],
        scaling=layer["scaling"],
        tp_rank=module.tp_rank,
    )


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
    size = min(CHECKSUM_CHUNK, max(tensor.numel() for tensor in tensors))
    places = torch.arange(1, size + 1, device=tensors[0].device, dtype=torch.int64) * CHECKSUM_FACTOR
    sums = []
    for tensor in tensors:
        for part in tensor.contiguous().view(torch.int16).flatten().split(CHECKSUM_CHUNK):
            sums.append(part.to(torch.int64).add_(0x8000).mul_(places[: part.numel()]).sum())
    total = 0
    for value in torch.stack(sums).tolist():
        total = (total * CHECKSUM_FACTOR + value + 1) % (1 << 64)
    return f"{total:016x}"


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
