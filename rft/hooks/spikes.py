"""Gradient spikes: one line in the spike log, and a bundle from which the step can be computed again.

`.venv/bin/python -m rft.runs.replay_spike BUNDLE` replays one. Environment: `SPIKE_LOG_PATH` (default
`$METRICS_LOG_DIR/spike_log.jsonl`; nothing is kept or written where both are unset) and `SPIKE_GRAD_NORM` (default 50).
"""

import functools
import json
import math
import os
import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import deepspeed.comm as dist
import torch
from deepspeed.accelerator import get_accelerator
from peft import PeftModel
from safetensors.torch import save_file

from rft import overlay
from rft.hooks.grad_norm import grad_norm, local_part, trainable
from rft.hooks.lora_sync import ADAPTER
from rft.hooks.spike_report import append_record, finite, prompt_hashes, tails_of, worst_tokens

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from openrlhf.trainer.ppo_utils.experience_maker import Experience
    from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer
    from transformers import PreTrainedTokenizerBase

LOG_FILE = "spike_log.jsonl"
DEFAULT_THRESHOLD = 50.0
BUNDLES_A_RUN = 20  # of each rank; a diverged run spikes at every step and would fill the disk
PRIVATE_ARGS = ("remote_rm_url", "use_wandb", "wandb")  # beginnings of options that may hold an address or a key


class SpikeRecorder:
    """Keeps the current accumulation group and the adapter before the step; writes them out when the norm is a spike.

    Called by OpenRLHF's `ActorPPOTrainer.training_step` on every rank: `keep` before each backward pass, `after_step`
    after it. Between spikes it costs one copy of this rank's share of the adapter and one scalar all-reduce a step,
    and it only reads what DeepSpeed owns, so that training is the same with and without it.
    """

    def __init__(
        self,
        engine: "DeepSpeedEngine",
        tokenizer: "PreTrainedTokenizerBase",
        args: Namespace,
        replay_buffer: "NaiveReplayBuffer",
    ) -> None:
        """Raises ValueError when `SPIKE_GRAD_NORM` is no number."""
        self.engine, self.tokenizer, self.args, self.replay_buffer = engine, tokenizer, args, replay_buffer
        self.log, self.threshold = log_path(), threshold()
        self.tree_ids = overlay.tree_ids() if self.log else None  # now, while the files are those that were imported
        self.group, self.before, self.step, self.bundles = [], None, 0, 0

    def keep(
        self, experience: "Experience", action_log_probs: torch.Tensor, loss: torch.Tensor, kl_ctl: float, step: int
    ) -> None:
        """Hold references to one micro-batch of the current accumulation group.

        Args:
            experience: OpenRLHF's `Experience`, tensors (batch, seq) or (batch, actions).
            action_log_probs: the policy's, (batch, actions), nats.
            loss: what the backward pass starts from, scalar.
            kl_ctl: coefficient of the KL loss.
            step: number of the micro-batch in the replay buffer, which knows its weight under `--micro_train_tokens`.
        """
        if self.log is None:
            return
        if not self.group:
            self.step = self.engine.global_steps
            if isinstance(self.engine.module, PeftModel):
                self.before = torch.cat([local_part(p).flatten() for p in trainable(self.engine)])
        values = {"kl_ctl": float(kl_ctl)}
        if self.args.use_dynamic_batch:
            values["dynamic_loss_scale"] = self.replay_buffer.dynamic_loss_scale[step]
        self.group.append((experience, action_log_probs.detach(), loss.detach(), values))

    def after_step(self) -> None:
        """Where the optimizer has stepped, write the group if its gradient norm is a spike; then forget the group."""
        if not self.group or self.engine.global_steps == self.step:
            return  # inside an accumulation group
        group, before = self.group, self.before
        self.group, self.before = [], None
        if not self.engine.was_step_applied():
            return  # fp16 overflow: DeepSpeed skipped the step, and its norm is that of an earlier one
        norm = grad_norm(self.engine)
        if math.isfinite(norm) and norm <= self.threshold:
            return
        # The norm is global, so all ranks come here together.
        adapter = None if before is None else gather_before(self.engine, before)
        self._write(norm, [_to_cpu(*entry) for entry in group], adapter)

    def _write(self, norm: float, group: list[tuple[dict, dict]], adapter: dict[str, torch.Tensor] | None) -> None:
        micros = [tensors for tensors, _ in group]
        rank = dist.get_rank()
        name = f"step_{self.engine.global_steps}_rank_{rank}"
        facts = {
            **self._describe(norm, rank),
            "micro_batches": [
                {**values, **tails_of(tensors), "prompt_hashes": prompt_hashes(tensors)} for tensors, values in group
            ],
        }
        worst = worst_tokens(micros, self.tokenizer)
        if self.bundles < BUNDLES_A_RUN:
            self.bundles += 1
            directory = self.log.parent / "spikes" / name
            facts["bundle"] = f"spikes/{name}"
            replay = {
                # One copy for all ranks: a bundle is replayed together with its siblings.
                "adapter": None if adapter is None else f"../step_{self.engine.global_steps}_rank_0/adapter",
                "args": plain_args(self.args),
                "tree_ids": self.tree_ids,
            }
            save = functools.partial(self._save_adapter, adapter) if adapter is not None and rank == 0 else None
            write_bundle(directory, micros, {**facts, **replay, "worst_tokens": worst}, save)
        append_record(self.log, {**facts, "worst_tokens": worst})

    def _describe(self, norm: float, rank: int) -> dict:
        args, step = self.args, self.engine.global_steps
        # OpenRLHF's actor does not know the rollout's number; it follows from the number of updates each one gives.
        updates = args.max_epochs * max(1, args.rollout_batch_size * args.n_samples_per_prompt // args.train_batch_size)
        return {
            "global_step": self.step // updates + 1,
            "optimizer_step": step,
            "adapter_version": self.step,
            "rank": rank,
            "world_size": dist.get_world_size(),
            "grad_norm": norm,
            "threshold": self.threshold,
            # What `rft.hooks.rollout_seeds.sample_seed` takes, beside the prompt and the sample's number.
            "seeds": {
                "seed": args.seed,
                "rollout_step": self.step // updates,
                "rollout_seeds": args.rollout_seeds,
                "full_determinism": args.full_determinism,
            },
            "bundle": None,
        }

    def _save_adapter(self, adapter: dict[str, torch.Tensor], directory: Path) -> None:
        self.engine.module.save_pretrained(
            directory, state_dict=adapter, save_embedding_layers=False, selected_adapters=[ADAPTER]
        )


def log_path() -> Path | None:
    """`$SPIKE_LOG_PATH`, or the spike log in `$METRICS_LOG_DIR`; None where neither is set."""
    if path := os.environ.get("SPIKE_LOG_PATH"):
        return Path(path)
    directory = os.environ.get("METRICS_LOG_DIR")
    return Path(directory, LOG_FILE) if directory else None


def threshold() -> float:
    """`$SPIKE_GRAD_NORM`: the gradient norm above which a step is a spike."""
    text = os.environ.get("SPIKE_GRAD_NORM", str(DEFAULT_THRESHOLD))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ValueError(f"SPIKE_GRAD_NORM is {text!r}; wanted a number, such as 50; set it or unset it")
    return value


def gather_before(engine: "DeepSpeedEngine", before: torch.Tensor) -> dict[str, torch.Tensor]:
    """The adapter whose local parts are concatenated in `before`, as whole CPU tensors by name. Call on every rank.

    One all-gather of the kept copy; nothing that DeepSpeed holds is touched. `GatheredParameters` would not do: it
    gathers the present values, and skips parameters so small that ZeRO-3 keeps them whole.
    """
    named = [(name, p) for name, p in engine.module.named_parameters() if p.requires_grad]
    shares = [before]
    partitioned = hasattr(named[0][1], "ds_tensor")
    if partitioned:
        group = named[0][1].ds_process_group
        mine = before.to(get_accelerator().current_device_name())
        shares = [torch.empty_like(mine) for _ in range(dist.get_world_size(group=group))]
        dist.all_gather(shares, mine, group=group)
    shares = [share.cpu() for share in shares]
    adapter, start = {}, 0
    for name, parameter in named:
        size = local_part(parameter).numel()
        whole = torch.cat([share[start : start + size] for share in shares])
        shape = parameter.ds_shape if partitioned else parameter.shape
        adapter[name] = whole[: math.prod(shape)].view(shape).clone()
        start += size
    return adapter


def _to_cpu(experience, action_log_probs, loss, values) -> tuple[dict[str, torch.Tensor], dict]:
    """A kept micro-batch as CPU tensors by name (`info.…` for the entries of its info field), and its plain values."""
    fields = vars(experience)
    tensors = {key: value for key, value in fields.items() if isinstance(value, torch.Tensor)}
    for key, value in experience.info.items():
        tensors[f"info.{key}"] = torch.as_tensor(value)
    tensors["new_log_probs"] = action_log_probs
    tensors = {key: value.detach().to("cpu", copy=True).contiguous() for key, value in tensors.items()}
    versions = tensors.get("info.adapter_version")
    return tensors, {
        **values,
        "samples": len(tensors["sequences"]),
        "loss": loss.item(),
        "numbers": {key: value for key, value in fields.items() if isinstance(value, int | float)},
        "rollout_adapter_versions": None if versions is None else versions.flatten().tolist(),
    }


def write_bundle(
    directory: Path,
    micros: list[dict[str, torch.Tensor]],
    facts: dict,
    save_adapter: Callable[[Path], None] | None = None,
) -> None:
    """Write `batch.safetensors`, `spike.json` and, with `save_adapter`, `adapter/`; all or nothing.

    All is written in a hidden sibling folder that is then renamed. A bundle of the same step from before a resume is
    replaced.
    """
    staging = directory.with_name(f".{directory.name}.partial")
    for leftover in (staging, directory):
        if leftover.exists():
            shutil.rmtree(leftover)
    staging.mkdir(parents=True)
    save_file(
        {f"{number}.{key}": tensor for number, micro in enumerate(micros) for key, tensor in micro.items()},
        staging / "batch.safetensors",
    )
    if save_adapter:
        save_adapter(staging / "adapter")
    (staging / "spike.json").write_text(json.dumps(finite(facts), allow_nan=False, indent=1) + "\n")
    staging.rename(directory)


def plain_args(args: Namespace) -> dict:
    """The options of the run that JSON can hold, without those that may carry an address or a key."""
    kinds = (type(None), bool, int, float, str, list, tuple)
    kept = {k: v for k, v in vars(args).items() if isinstance(v, kinds) and not k.startswith(PRIVATE_ARGS)}
    return json.loads(json.dumps(finite(kept)))
