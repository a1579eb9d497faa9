"""What a gradient spike looked like, in plain values: ratio tails, prompt hashes, worst tokens. Pure functions.

A micro-batch is a dict of CPU tensors. `sequences` (batch, seq) int64, `attention_mask` (batch, seq); and one entry for
each action position in `action_mask`, `new_log_probs`, `action_log_probs` (the old policy's), `advantages` and, where
the run has them, `rollout_log_probs` and `base_action_log_probs`, all (batch, actions), log-probabilities in nats.
Action position t is the prediction of token `seq - actions + t`, so that positions are one before their tokens.
"""

import hashlib
import json
import math
import numbers
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rft.hooks.loss import LOG_RATIO_BOUND, ratio_tails
from rft.record.files import append_lines

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WORST_TOKENS = 20  # tokens listed
CONTEXT_TOKENS = 20  # tokens decoded before each of them


def tails_of(micro: dict[str, torch.Tensor]) -> dict[str, float | None]:
    """The tails of the log-ratio (new minus old policy) over a micro-batch's action tokens; see `rft.hooks.loss`.

    A spike's usual cause is a few tokens far out here, hence the tails and not the mean.
    """
    log_ratio = (micro["new_log_probs"].float() - micro["action_log_probs"].float())[micro["action_mask"].bool()]
    return ratio_tails(log_ratio, log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND))


def prompt_hashes(micro: dict[str, torch.Tensor]) -> list[str]:
    """SHA-256 (hex) of each sample's prompt: its token ids before the first action, as little-endian int32 bytes."""
    sequences, action_mask = micro["sequences"], micro["action_mask"].bool()
    first_position = sequences.shape[1] - action_mask.shape[1]
    hashes = []
    for ids, attended, actions in zip(sequences, micro["attention_mask"].bool(), action_mask, strict=True):
        # A sample without any action is all prompt.
        end = first_position + int(actions.int().argmax()) if actions.any() else len(ids)
        prompt = ids[:end][attended[:end]]
        hashes.append(hashlib.sha256(prompt.numpy().astype("<i4").tobytes()).hexdigest())
    return hashes


def worst_tokens(
    micros: list[dict[str, torch.Tensor]], tokenizer: "PreTrainedTokenizerBase", count: int = WORST_TOKENS
) -> list[dict]:
    """The action tokens with the largest |log-ratio · advantage|, NaN first.

    Equal scores are ordered by |advantage| · (1 - probability), the size of the policy gradient at the logits: in the
    first update on a rollout every log-ratio is 0, and that is what is left to tell tokens apart.

    Returns:
        One dict per token: micro-batch, sample, position in the sequence, turn (from 1: of what the policy sampled
        without an interruption), token id, its text and the text of the `CONTEXT_TOKENS` before it, log-probabilities
        (nats), advantage, score.
    """
    rows = []
    for number, micro in enumerate(micros):
        new, old, advantages = (micro[key].float() for key in ("new_log_probs", "action_log_probs", "advantages"))
        scores = ((new - old) * advantages).abs().nan_to_num(nan=math.inf)
        ties = (advantages * (1 - new.exp())).abs().nan_to_num(nan=math.inf)
        where = micro["action_mask"].bool().nonzero()
        kept = zip(scores[tuple(where.T)].tolist(), ties[tuple(where.T)].tolist(), where.tolist(), strict=True)
        rows += sorted(((score, tie, number, *at) for score, tie, at in kept), reverse=True)[:count]
    rows = sorted(rows, reverse=True)[:count]
    return [_describe_token(micros[number], tokenizer, number, *at) for _, _, number, *at in rows]


def _describe_token(micro: dict[str, torch.Tensor], tokenizer, number: int, sample: int, action: int) -> dict:
    ids = micro["sequences"][sample]
    position = len(ids) - micro["action_mask"].shape[1] + action
    start = max(0, position - CONTEXT_TOKENS)
    before = ids[start:position][micro["attention_mask"][sample][start:position].bool()]
    log_probs = {
        name: micro[key][sample, action].item() if key in micro else None
        for name, key in {
            "log_prob": "new_log_probs",
            "old_log_prob": "action_log_probs",
            "rollout_log_prob": "rollout_log_probs",
            "base_log_prob": "base_action_log_probs",
        }.items()
    }
    advantage = micro["advantages"][sample, action].item()
    return {
        "micro_batch": number,
        "sample": sample,
        "position": position,
        "turn": turn_of(micro["action_mask"][sample], action),
        "token_id": int(ids[position]),
        "token": tokenizer.decode(ids[position : position + 1].tolist()),
        "context": tokenizer.decode(before.tolist()),
        **log_probs,
        "advantage": advantage,
        "score": abs((log_probs["log_prob"] - log_probs["old_log_prob"]) * advantage),
    }


def turn_of(mask: torch.Tensor, action: int) -> int:
    """Which of a sample's turns, from 1, an action position is in; `mask` (actions,) is 1 on sampled tokens."""
    begun = mask.bool()[: action + 1]
    return int(begun[0]) + int((begun[1:] & ~begun[:-1]).sum())


def finite(value: object):
    """The same nested value with NaN and infinities as None, so that it is valid JSON."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return float(value) if math.isfinite(value) else None
    return value


def append_record(path: Path, record: dict) -> None:
    """Append one JSON line to a file that several processes write."""
    append_lines(path, json.dumps(finite(record), allow_nan=False) + "\n")
