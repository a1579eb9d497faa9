"""Keep the adapter of the best evaluation on the OOD probe, and say which it is.

Published runs peaked at step 30 of 60 and 130 of 200 (docs/sources.md), whose checkpoints `--max_ckpt_num` had removed.
"""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import ray

from rft.hooks.run_files import run_dir
from rft.record.eval_names import probe_metric
from rft.record.files import replace_json

if TYPE_CHECKING:
    from openrlhf.trainer.ppo_trainer import PPOTrainer

FILE = "best.json"


def keep(trainer: "PPOTrainer", global_step: int, evaluation: dict) -> None:
    """Where `evaluation` is the best so far, save the adapter in `<ckpt_path>/best_step<N>_hf`, named by best.json.

    best.json: `global_step`, `metric`, `value`, `checkpoint` (null at step 0, which is the base model, and without
    LoRA, where a checkpoint is the whole model). It is in the run directory and in `ckpt_path`, and is replaced
    once the adapter is complete; only then the former best is removed. Of equals the first stays. Does nothing
    where the run has no directory.

    Args:
        trainer: OpenRLHF's `PPOTrainer`; of its `args` `ckpt_path`, `load_checkpoint`, `lora_rank`.
        global_step: steps trained.
        evaluation: metrics by name, see `rft.hooks.in_loop.metrics`.
    """
    place, metric = run_dir(), probe_metric([evaluation])
    if place is None or metric is None:
        return
    folder = Path(trainer.args.ckpt_path)
    former = former_best(folder, place, trainer.args.load_checkpoint) if global_step else None
    if former and former["metric"] == metric and former["value"] >= evaluation[metric]:
        replace_json(place / FILE, former)  # a resumed run may log to a new directory
        return
    checkpoint = None
    if global_step and trainer.args.lora_rank > 0:
        checkpoint = (folder / f"best_step{global_step}_hf").absolute()
        save = trainer.actor_model_group.async_run_method(method_name="save_model", save_path=str(checkpoint))
        ray.get(save)
    value, path = evaluation[metric], str(checkpoint) if checkpoint else None
    best = {"global_step": global_step, "metric": metric, "value": value, "checkpoint": path}
    for file in (folder / FILE, place / FILE):
        replace_json(file, best)
    if former and former["checkpoint"]:
        old = folder / Path(former["checkpoint"]).name  # its folder may have been moved, or be a copy
        if old.absolute() != checkpoint and old.is_dir():
            shutil.rmtree(old)


def former_best(folder: Path, place: Path, resumed: bool) -> dict | None:
    """The best so far: best.json beside the checkpoints, for a resumed run may write to another run directory.

    A new run in the checkpoint folder of another one inherits nothing, and so removes nothing of it.
    """
    file = folder / FILE
    return json.loads(file.read_text()) if file.is_file() and (resumed or (place / FILE).is_file()) else None
