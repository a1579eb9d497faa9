"""The actors that `benchmarks.actor` compares, and one batch of packed sequences for each of them."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from openrlhf.models.utils import log_probs_from_logits
from transformers import GptOssForCausalLM, Mxfp4Config

from benchmarks.kernel_families import region
from benchmarks.trainer import randomize_adapter, with_lora
from rft.actor.load import load_resident
from rft.actor.packed import pack
from rft.hooks import float32_head, rotary

EAGER_SEQUENCES = 4  # at once, as in training: more have no room for their attention matrices and logits


class Batch(NamedTuple):
    """Sequences of one length: `tokens` (sequences, length), `weights` of the loss (sequences, length - 1)."""

    tokens: torch.Tensor
    weights: torch.Tensor


def device() -> str:
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"


def random_batch(tokens: int, length: int, vocabulary: int, seed: int = 0) -> Batch:
    """Random tokens, special ones left out; weights between -1 and 1, a mean's share each, as advantages are."""
    shape = (tokens // length, length)
    ids = torch.randint(vocabulary * 99 // 100, shape, generator=torch.Generator().manual_seed(seed))
    scored = shape[0] * (length - 1)
    weights = torch.linspace(-1, 1, scored).view(shape[0], length - 1) / scored
    return Batch(ids.to(device()), weights.to(device()))


def load(kind: str, checkpoint: Path, rank: int, recompute: bool = False, shard: int = 1) -> torch.nn.Module:
    """`resident`, `eager` (as transformers dequantises it, bf16) or `float32` (the same, cast), with the same adapters.

    Head in float32 like `--head_dtype float32`. The adapters' values are those that bf16 can hold, in each of them.
    Every layer of the eager ones is recomputed in the backward pass, as today's presets do; of the resident one's with
    `recompute`. `shard` ranks split the resident one's experts.
    """
    if kind == "resident":
        model = load_resident(str(checkpoint), device(), shard=shard)
    else:
        model = GptOssForCausalLM.from_pretrained(
            checkpoint,
            quantization_config=Mxfp4Config(dequantize=True),
            attn_implementation="eager",
            torch_dtype=torch.bfloat16,
            device_map={"": device()},
        )
    model = with_lora(model, rank)
    randomize_adapter(model, seed=0)
    rotary.cast(model, torch.bfloat16)
    if kind == "float32":
        torch.set_float32_matmul_precision("highest")  # no TF32
        rotary.cast(model, torch.float32)
    if kind == "eager":
        float32_head.install(model)
    if recompute or kind != "resident":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.config.use_cache = False
    return model.train()


def score(kind: str, model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probabilities (sequences, length - 1) of all tokens but each sequence's first."""
    sequences, length = tokens.shape
    if kind == "resident":
        flat = tokens.flatten()
        rows = torch.arange(flat.numel(), device=flat.device).view(sequences, length)[:, :-1].flatten()
        packed = pack([length] * sequences, flat.device)
        found, _ = model(flat, packed=packed, rows=rows, targets=flat[rows + 1], float32_logits=True)
        return found.view(sequences, length - 1)
    logits = model(tokens, attention_mask=torch.ones_like(tokens)).logits
    with region("head"):  # of all tokens, in float32, as in OpenRLHF's `Actor.forward`
        return log_probs_from_logits(logits.to(torch.float32), tokens.roll(-1, 1))[:, :-1]


def parts(kind: str, batch: Batch) -> list[Batch]:
    """The micro-batches in which an actor takes a batch."""
    if kind == "resident":
        return [batch]
    return [Batch(*pair) for pair in zip(*(each.split(EAGER_SEQUENCES) for each in batch), strict=True)]


def steps(kind: str, model: torch.nn.Module, batch: Batch) -> dict[str, Callable[[], None]]:
    """What is timed: `forward + backward`, which leaves no gradient behind, and `forward`."""

    def both() -> None:
        gradients(kind, model, batch)
        model.zero_grad(set_to_none=True)

    @torch.no_grad()
    def ahead() -> None:
        for part in parts(kind, batch):
            score(kind, model, part.tokens)

    return {"forward + backward": both, "forward": ahead}


def gradients(kind: str, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Accumulate the adapters' gradients of the weighted sum of log-probabilities; returns these (sequences, …)."""
    found = []
    for part in parts(kind, batch):
        log_probs = score(kind, model, part.tokens)
        (log_probs * part.weights).sum().backward()
        found.append(log_probs.detach())
    return torch.cat(found)
