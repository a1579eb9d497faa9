"""Bundles of a gradient spike, read back, and the comparison of a replay with them. See `rft.runs.replay_spike`."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file


@dataclass
class Bundle:
    """The bundles of one step, in rank order: `spike.json` of each, and their micro-batches as dicts of tensors."""

    path: Path
    facts: list[dict]
    micros: list[dict]

    @property
    def complete(self) -> bool:
        return len(self.facts) == self.facts[0]["world_size"]

    @property
    def recorded(self) -> list[dict]:
        return [micro for facts in self.facts for micro in facts["micro_batches"]]


@dataclass
class Row:
    """One compared quantity: values, their difference and what is allowed."""

    name: str
    recorded: float | None
    replayed: float | None
    difference: float
    allowed: float

    @property
    def agrees(self) -> bool:
        return self.difference <= self.allowed  # false for NaN


def load_bundle(path: Path) -> Bundle:
    """Read a bundle and its siblings. Raises ValueError when one of them is no bundle, or of another step."""
    path = path.resolve()
    own = read_facts(path)
    siblings = [path.with_name(f"step_{own['optimizer_step']}_rank_{rank}") for rank in range(own["world_size"])]
    found = [directory for directory in siblings if directory.is_dir()] if path in siblings else [path]
    facts, micros = [], []
    for directory in found:
        read = read_facts(directory)
        same = ("optimizer_step", "world_size", "grad_norm", "adapter_version")
        differing = [key for key in same if read[key] != own[key]]
        if differing:
            key = differing[0]
            raise ValueError(
                f"{directory}: found {key} {read[key]}, wanted {own[key]} as in {path}; these are not bundles of one "
                "step, put them into separate directories"
            )
        file = directory / "batch.safetensors"
        try:
            tensors = load_file(file)
        except (SafetensorError, FileNotFoundError) as error:
            raise ValueError(f"{file}: not a complete safetensors file ({error}); copy the bundle again") from None
        for number in range(len(read["micro_batches"])):
            prefix = f"{number}."
            micros.append({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
        facts.append(read)
    return Bundle(path, facts, micros)


def read_facts(directory: Path) -> dict:
    """`spike.json` of a bundle. Raises ValueError when the directory holds none."""
    file = directory / "spike.json"
    if not file.is_file():
        raise ValueError(f"{directory}: found no spike.json; wanted a bundle, RUN/spikes/step_N_rank_R")
    try:
        facts = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file}: not JSON ({error}); copy the bundle again") from None
    missing = {
        "adapter",
        "adapter_version",
        "args",
        "grad_norm",
        "micro_batches",
        "optimizer_step",
        "world_size",
    } - set(facts)
    if missing:
        raise ValueError(f"{file}: found no {sorted(missing)[0]}; wanted a bundle written by rft.hooks.spikes")
    return facts


def find_base(bundle: Bundle, base: str | None) -> str:
    """The checkpoint to start from. Raises ValueError when it is missing, or when the bundle cannot be replayed."""
    facts = bundle.facts[0]
    args = facts["args"]
    split = [name for name in ("ring_attn_size", "ds_tensor_parallel_size") if args.get(name, 1) != 1]
    if split:
        raise ValueError(f"{bundle.path}: the run used --{split[0]} {args[split[0]]}; a replay runs on one rank only")
    if facts["adapter"] is None and base is None:
        raise ValueError(
            f"{bundle.path}: the run trained all weights, which the bundle does not hold; pass the checkpoint of "
            f"optimizer step {facts['adapter_version']} with --base"
        )
    if facts["adapter"] is not None and not (bundle.path / facts["adapter"]).is_dir():
        raise ValueError(f"{bundle.path}: found no {facts['adapter']}; copy the bundle of rank 0 beside this one")
    base = base or args["pretrain"]
    if not Path(base, "config.json").is_file():
        raise ValueError(f"{base}: found no config.json; wanted the base checkpoint of the run; pass it with --base")
    return base


def compare(bundle: Bundle, log_probs: list, losses: list[float], norm: float, tolerance: float) -> list[Row]:
    """Compare with the recording.

    Allowed are `tolerance` nats of mean |difference| of the log-probabilities of action tokens; for the losses
    `tolerance` times the larger of 1e-6, the loss and the mean |advantage| (a group's loss can cancel to zero); for the
    norm `tolerance` times itself, where the bundles of all ranks are there. A value that is not finite agrees with
    another that is not.
    """
    rows = []
    for number, (micro, recorded) in enumerate(zip(bundle.micros, bundle.recorded, strict=True)):
        mask = micro["action_mask"].bool()
        before, now = micro["new_log_probs"].float()[mask], log_probs[number][mask]
        apart = ((before - now).abs() * (before != now)).mean().item()
        both_broken = not before.isfinite().all() and not now.isfinite().all()
        means = before.mean().item(), now.mean().item()
        rows.append(Row(f"{number}: mean log-prob", *means, 0 if both_broken else apart, tolerance))
        size = max(abs(recorded["loss"] or 0), micro["advantages"].float().abs()[mask].mean().item(), 1e-6)
        rows.append(_row(f"{number}: loss", recorded["loss"], losses[number], tolerance * size))
    if bundle.complete:
        grad_norm = bundle.facts[0]["grad_norm"]
        rows.append(_row("gradient norm", grad_norm, norm, tolerance * abs(grad_norm or 0)))
    return rows


def _row(name: str, recorded: float | None, replayed: float, allowed: float) -> Row:
    """Compare numbers; the recording holds None for what was not finite."""
    if recorded is None or not math.isfinite(replayed):
        both_broken = recorded is None and not math.isfinite(replayed)
        return Row(name, recorded, replayed, 0 if both_broken else math.inf, allowed)
    return Row(name, recorded, replayed, abs(recorded - replayed), allowed)
