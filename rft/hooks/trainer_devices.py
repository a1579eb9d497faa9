"""What the trainer's ranks say of their GPUs: how many, how fast they could be, the most memory that a phase took."""

import os

import torch

from rft.record.flops import peak_tflops

_peak_gb: dict[str, float] = {}


def end_phase(name: str | None) -> None:
    """Keep the most memory that torch held on this rank's GPU since the last call as `memory_<name>_gb`.

    With None only start anew. Does nothing on a CPU.
    """
    if _on_gpu():
        if name:
            _peak_gb[f"memory_{name}_gb"] = torch.cuda.max_memory_allocated() / 1e9
        torch.cuda.reset_peak_memory_stats()


def _on_gpu() -> bool:
    """False too for the CPU stack on a machine with GPUs, which its torch sees."""
    return os.environ.get("DS_ACCELERATOR") != "cpu" and torch.cuda.is_available()


def mine() -> tuple[str | None, dict[str, float]]:
    """This rank's device name (None on a CPU) and the peaks of its phases, which are taken."""
    device = torch.cuda.get_device_name() if _on_gpu() else None
    peaks = dict(_peak_gb)
    _peak_gb.clear()
    return device, peaks


def metrics(ranks: list[tuple[str | None, dict[str, float]]]) -> dict[str, float]:
    """`trainer_gpus`, `memory_<phase>_gb` (the most), `device_peak_tflops` (the slowest; absent if one is unknown)."""
    devices = [device for device, _ in ranks if device is not None]
    found = {"trainer_gpus": float(len(devices))}
    speeds = [peak_tflops(device) for device in devices]
    if speeds and None not in speeds:
        found["device_peak_tflops"] = min(speeds)
    for _, peaks in ranks:
        for name, value in peaks.items():
            found[name] = max(value, found.get(name, 0.0))
    return found
