"""What a supervised training leaves in its run's directory: a line a step and an evaluation, checkpoints, its end.

The names are those of GRPO's files (docs/metrics.md), so that monitor, resume and launchers read both.
"""

import os
import time
from argparse import Namespace
from typing import TYPE_CHECKING

from rft.hooks import metrics, save_and_stop
from rft.hooks.grad_norm import grad_norm
from rft.hooks.run_files import forget_stop

if TYPE_CHECKING:
    from openrlhf.trainer.sft_trainer import SFTTrainer
    from openrlhf.utils.deepspeed import DeepspeedStrategy

_step = {"began": 0.0, "tokens": 0, "learned_tokens": 0}  # of the step under way on this rank


def place_of(args: Namespace) -> str:
    """Where checkpoints are: as GRPO's actor has them, so that launchers find either."""
    return os.path.join(args.ckpt_path, "_actor")


def steps_of(rows: int, batch: int) -> int:
    """Optimizer steps of an epoch. Raises SystemExit where the rows fill none."""
    if rows < batch:
        raise SystemExit(
            "error: the rows fill no batch\n"
            f"  found:  {rows} conversations to learn, --train_batch_size {batch}\n"
            "  wanted: a batch at least; what is left over at the end of an epoch is not trained on\n"
            f"  repair: --train_batch_size {rows} or less, a larger --max_len, or more rows"
        )
    return rows // batch


def resume(strategy: "DeepspeedStrategy", global_step: int) -> None:
    """Before the training goes on: lines of later steps leave the metrics (`rft.hooks.metrics.rewind`)."""
    if strategy.is_rank_0():
        metrics.rewind(global_step)


def begin_step(tokens: int, learned: int) -> None:
    """Call when a step's micro-batches are there.

    Args:
        tokens: of this rank's share, padding left out.
        learned: those that the loss has.
    """
    _step.update(began=time.perf_counter(), tokens=tokens, learned_tokens=learned)


def log_step(trainer: "SFTTrainer", global_step: int, logs: dict) -> dict:
    """Append the step to training_metrics.jsonl, on rank 0; call on every rank.

    Args:
        logs: `loss_mean`, this rank's part of the step's loss, and `lr`.

    Returns:
        What W&B and TensorBoard get: the step's numbers, and of `logs` what is not one rank's alone.
    """
    strategy = trainer.strategy
    sums = strategy.all_reduce({name: float(_step[name]) for name in ("tokens", "learned_tokens")}, "sum")
    seconds = time.perf_counter() - _step["began"]
    found = {
        "sft_loss": strategy.all_reduce(logs["loss_mean"]),  # nats a learned token, over the whole batch
        "actor_lr": logs["lr"],
        "grad_norm": grad_norm(trainer.model.model),
        "time_step_seconds": seconds,
        "tokens_per_second_step": sums["tokens"] / seconds,
        **sums,
    }
    if strategy.is_rank_0():
        metrics.log_training_step(global_step, found)
        print(f"step {global_step}: loss {found['sft_loss']:.4f}, {seconds:.1f} s", flush=True)
    return {name: value for name, value in logs.items() if name != "loss_mean"} | found


def is_last(trainer: "SFTTrainer", global_step: int) -> bool:
    """Whether the training ends with this step: its adapter is the one that is kept, and so is measured."""
    rows = len(trainer.train_dataloader.dataset)
    return global_step == trainer.epochs * steps_of(rows, trainer.args.train_batch_size)


def log_evaluation(strategy: "DeepspeedStrategy", global_step: int, loss: float, learned: float) -> dict:
    """Append the loss on held-out rows to eval_metrics.jsonl, on rank 0; call on every rank.

    Args:
        loss: summed over this rank's learned tokens, nats.
        learned: their number.

    Returns:
        `sft_eval_loss`, nats a token, over all ranks.
    """
    sums = strategy.all_reduce({"loss": loss, "learned": learned}, "sum")
    found = {"sft_eval_loss": sums["loss"] / max(1.0, sums["learned"])}
    if strategy.is_rank_0():
        metrics.log_evaluation(global_step, found)
        print(f"step {global_step}: loss on held-out rows {found['sft_eval_loss']:.4f}", flush=True)
    return found


def stop_asked(strategy: "DeepspeedStrategy", global_step: int) -> dict | None:
    """`rft.hooks.save_and_stop.asked`, the same answer on every rank; call on every rank."""
    note = save_and_stop.asked(strategy.args, global_step) if strategy.is_rank_0() else None
    if not strategy.all_reduce(float(note is not None), "max"):
        return None
    return note or {"global_step": global_step, "rule": save_and_stop.CAUSE, "reason": "rank 0 was asked"}


def finish(strategy: "DeepspeedStrategy", stopped: dict | None) -> None:
    """After the training. Raises SystemExit with status 11 on every rank where it was asked to stop."""
    if strategy.is_rank_0():
        save_and_stop.finish(stopped)
        forget_stop()
    elif stopped:
        raise SystemExit(save_and_stop.STATUS)
