"""DeepSpeed checkpoints that a kill cannot spoil, without the frozen base model, with every random state."""

import os
import random
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from deepspeed.accelerator import get_accelerator
from peft import PeftModel

from rft.hooks.init_adapter import digest_of
from rft.record.files import replace_text

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

LATEST = "latest"  # DeepSpeed's name for the file that names the newest complete checkpoint


def save(engine: "DeepSpeedEngine", directory: str, tag: str, client_state: dict, save_latest: bool = True) -> None:
    """Save trainable weights, optimizer, scheduler, `client_state` and this rank's random states; call on every rank.

    The frozen base of a LoRA model is left out: 42 GB for an adapter of 32 MB at gpt-oss-20b (DeepSpeed's
    `exclude_frozen_parameters`, which upstream never sets). `latest` is replaced at once, and only when every rank has
    written its files, so that a kill at any moment leaves the last complete checkpoint in force.
    """
    folder = Path(directory, tag)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(random_states(), folder / f"rng_rank_{torch.distributed.get_rank()}.pt")
    lora = isinstance(engine.module, PeftModel)
    client_state = client_state | digest_of(engine.module)
    engine.save_checkpoint(
        directory, tag=tag, client_state=client_state, save_latest=False, exclude_frozen_parameters=lora
    )
    torch.distributed.barrier()
    if save_latest and torch.distributed.get_rank() == 0:
        replace_text(Path(directory, LATEST), tag)
    torch.distributed.barrier()


def exists(directory: str) -> bool:
    """Whether a complete checkpoint is there; a kill during the first save leaves files, but none to resume from."""
    return Path(directory, LATEST).is_file()


def restore_rng(load_path: str) -> None:
    """Restore this rank's random states from a checkpoint; those of upstream have none, and are left alone."""
    path = Path(load_path).parent / f"rng_rank_{torch.distributed.get_rank()}.pt"
    if path.is_file():
        set_random_states(torch.load(path, weights_only=False))


def random_states() -> dict:
    """The states of this process's generators: Python's, numpy's, torch's, the accelerator's."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "accelerator": None if _cpu_only() else get_accelerator().get_rng_state(),
    }


def set_random_states(states: dict) -> None:
    """Put `random_states` back."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if states["accelerator"] is not None and not _cpu_only():
        get_accelerator().set_rng_state(states["accelerator"])


def remove_oldest(directory: str, max_number: int, max_gb: float, saved: str) -> None:
    """Keep at most `max_number` checkpoints within `max_gb` GiB, this run's newest ones; rank 0 does it, others return.

    Never removed: `saved`, and the one that `latest` names, which a resume loads. First to go are those of later
    steps than `saved`, which an older run in the same place, or one that was rewound, has left behind; then the oldest.

    Upstream removes before it saves, so that `--max_ckpt_num 1` has no checkpoint while it writes one, and never
    removes the `_hf` folders; it goes by the time of change, which a copy of the folders does not keep.

    Args:
        directory: holds the checkpoints; folders of other names than `saved`, but for the number, are left alone.
        saved: name of the folder just written, `global_step<N>`, with `_hf` behind it in Hugging Face's format.
    """
    if torch.distributed.get_rank() != 0:
        return
    number, suffix = re.fullmatch(r"global_step(\d+)(.*)", saved).groups()
    pattern, newest = re.compile(rf"global_step(\d+){re.escape(suffix)}"), int(number)
    found = [(int(m[1]), p) for p in Path(directory).iterdir() if p.is_dir() and (m := pattern.fullmatch(p.name))]
    kept = [path for _, path in sorted(found, key=lambda one: (one[0] <= newest, one[0]))]
    latest = Path(directory, LATEST)
    safe = {saved, latest.read_text().strip() if latest.is_file() else saved}
    for path in [path for path in kept if path.name not in safe]:
        if len(kept) > max_number or sum(map(_size, kept)) > max_gb * 2**30:
            shutil.rmtree(path)
            kept.remove(path)


def _size(folder: Path) -> int:
    """Bytes of a folder's files."""
    return sum(os.path.getsize(file) for file in folder.rglob("*") if file.is_file())


def _cpu_only() -> bool:
    return get_accelerator().device_name() == "cpu"
