"""Trainer side of the LoRA weight sync: gather the adapter once, send it once, compare what every worker reports.

The stock full broadcast cannot serve LoRA (OpenRLHF issues #546, #1081: PEFT names do not match the engine's) and
would move the whole model for an adapter of some ten megabytes.
"""

import time
from argparse import Namespace
from itertools import pairwise

import deepspeed
import ray
import torch
from peft import PeftModel

from rft.hooks import trainer_devices
from rft.hooks.kept_share import probed
from rft.hooks.lora_exact import ExactLinear, trainer_kept_share
from rft.hooks.lora_manifest import PEFT_PREFIX, build_manifest

ADAPTER = "default"


def is_active(args: Namespace) -> bool:
    """Whether this run syncs by adapter: LoRA is on. The adapter goes through Ray's object store in any case."""
    return args.lora_rank > 0 and bool(args.vllm_num_engines)


def lora_layers(model: PeftModel) -> list[tuple[str, torch.nn.Module]]:
    """The adapted linear layers, as (checkpoint name of the weight, PEFT layer), in model order.

    Raises:
        ValueError: some trainable parameter is not a LoRA A or B matrix, so an adapter sync would leave it behind.
    """
    layers, covered = [], set()
    for name, module in model.named_modules():
        if ADAPTER in getattr(module, "lora_A", {}):
            layers.append((f"{name.removeprefix(PEFT_PREFIX)}.weight", module))
            covered |= {id(module.lora_A[ADAPTER].weight), id(module.lora_B[ADAPTER].weight)}
    left_behind = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in covered]
    if left_behind:
        raise ValueError(
            f"LoRA sync: {len(left_behind)} trainable parameters are not LoRA A or B matrices of a linear layer "
            f"(first: {left_behind[0]}); adapt attention projections only, e.g. "
            "--target_modules q_proj k_proj v_proj o_proj"
        )
    if not layers:
        raise ValueError("LoRA sync: --lora_rank is set but the model has no LoRA layer; check --target_modules")
    return layers


def pack_adapter(adapted: list[tuple[str, torch.nn.Module]], version: int) -> tuple[dict, torch.Tensor]:
    """Pack every A and B of `lora_layers`, gathered, into one flat CPU buffer (numel,) in the adapter's own dtype.

    Sending the dtype that the trainer computes with keeps the sync exact (bf16 under DeepSpeed's bf16 mode).
    """
    layers, matrices = [], []
    for name, module in adapted:
        a, b = module.lora_A[ADAPTER].weight.data, module.lora_B[ADAPTER].weight.data
        layers.append(
            {
                "name": name,
                "rank": a.shape[0],
                "in_features": a.shape[1],
                "out_features": b.shape[0],
                "scaling": float(module.scaling[ADAPTER]),
            }
        )
        matrices += [a.flatten(), b.flatten()]
    packed = torch.cat(matrices)
    # Page-locked memory, which torch keeps for the next sync: a copy into fresh pages takes ten times as long.
    buffer = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=packed.is_cuda)
    return build_manifest(layers, packed.dtype, version), buffer.copy_(packed)


def sync(engine: deepspeed.DeepSpeedEngine, vllm_engines: list, serving: str) -> dict[str, float] | None:
    """Let every vLLM worker serve the adapter as it is now, `exact` or `merged`. Call on every rank.

    Returns:
        On rank 0 the metrics of the sync (see `receipt_metrics`), on the others None.

    Raises:
        ValueError: a worker refused the adapter, serves it otherwise, or the workers' receipts disagree.
    """
    marks, metrics = [time.perf_counter()], None
    # Looked up once: the walk over all modules takes longer than the gather, and they stay the same.
    parts = engine.rft_adapter_parts = getattr(engine, "rft_adapter_parts", None) or _parts(engine.module)
    layers, measured, needed = parts
    # One coalesced all-gather for all adapter matrices; a gather per matrix would be a latency per matrix.
    with deepspeed.zero.GatheredParameters(needed, enabled=engine.zero_optimization_partition_weights()):
        marks.append(time.perf_counter())
        if torch.distributed.get_rank() == 0:
            manifest, buffer = pack_adapter(layers, version=engine.global_steps)
            marks.append(time.perf_counter())
            payload = ray.put(buffer.view(torch.uint8).numpy())
            marks.append(time.perf_counter())
            answers = [e.apply_lora.remote(manifest, payload) for e in vllm_engines]
            kept = trainer_kept_share(measured)  # while the engines work
    if torch.distributed.get_rank() == 0:
        per_engine = ray.get(answers)
        marks.append(time.perf_counter())
        compare_receipts(manifest, per_engine, serving)
        if manifest["version"] == 0:  # an init adapter: no step will log this sync
            checksum = per_engine[0][0]["checksum"]
            print(f"LoRA sync: {len(per_engine)} engines serve the init adapter, checksum {checksum}", flush=True)
        metrics = receipt_metrics(per_engine, marks)
        if kept is not None:
            metrics["adapter_output_kept_share"] = kept
    torch.distributed.barrier()
    trainer_devices.end_phase(None)
    return metrics


def _parts(model: PeftModel) -> tuple[list, list[ExactLinear], list[torch.nn.Parameter]]:
    """The adapted layers, those whose kept share is measured, and the parameters that a sync reads."""
    layers = lora_layers(model)  # on every rank: one that raised alone would leave the others in the barrier
    measured = [layer for _, layer in probed(layers) if isinstance(layer, ExactLinear)]
    needed = [p for p in model.parameters() if p.requires_grad]
    return layers, measured, needed + [p for layer in measured for p in layer.base_layer.parameters()]


def compare_receipts(manifest: dict, per_engine: list[list[dict]], serving: str) -> None:
    """Check the receipts of every engine (outer) and tensor-parallel rank (inner) against the manifest and each other.

    Raises:
        ValueError: an engine serves in another way than `serving`, a version or count differs from the manifest's, or
            two engines hold different weights.
    """
    for index, receipts in enumerate(per_engine):
        for receipt, first in zip(receipts, per_engine[0], strict=True):
            where = f"engine {index}, tensor-parallel rank {receipt['tp_rank']}"
            if receipt["serving"] != serving:
                raise ValueError(
                    f"LoRA sync: {where} serves the adapter {receipt['serving']}, wanted {serving}; verify the patches "
                    "of its node (bash apply_patches.sh verify --ray)"
                )
            found = (receipt["version"], receipt["layers"])
            wanted = (manifest["version"], len(manifest["layers"]))
            if found != wanted:
                raise ValueError(f"LoRA sync: {where} holds (version, layers) {found}, wanted {wanted}")
            if receipt["checksum"] != first["checksum"]:
                raise ValueError(
                    f"LoRA sync: {where} holds weights {receipt['checksum']}, engine 0 holds {first['checksum']}: "
                    "the engines did not start from the same base checkpoint"
                )


def receipt_metrics(per_engine: list[list[dict]], marks: list[float]) -> dict[str, float]:
    """Numbers for the metrics log: seconds by phase (the slowest worker's), adapter version, shares of the update."""
    receipts = [receipt for receipts in per_engine for receipt in receipts]
    gather, pack, put, rpc = (b - a for a, b in pairwise(marks))
    metrics = {
        "sync_adapter_version": receipts[0]["version"],
        "sync_layers": receipts[0]["layers"],
        # The low half of engine 0's first checksum: exact as a JSON number, enough to recognise the weights by.
        "sync_checksum32": int(receipts[0]["checksum"], 16) & 0xFFFFFFFF,
        "sync_seconds": marks[-1] - marks[0],
        "sync_gather_seconds": gather,
        "sync_pack_seconds": pack,
        "sync_put_seconds": put,
        "sync_rpc_seconds": rpc,
    }
    for phase in receipts[0]["seconds"]:
        metrics[f"sync_worker_{phase}_seconds"] = max(receipt["seconds"][phase] for receipt in receipts)
    for share in ("kept_share", "output_kept_share"):
        known = [receipt[share] for receipt in receipts if receipt[share] is not None]
        if known:
            metrics[f"sync_{share}"] = min(known)
    metrics["sync_output_moved_share"] = min(receipt["output_moved_share"] for receipt in receipts)
    metrics["sync_changed_share"] = sum(receipt["changed_share"] for receipt in receipts) / len(receipts)
    return metrics
