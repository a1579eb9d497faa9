"""What the policy generated: the samples of a training step as JSON lines, gzipped."""

import gzip
import json
import math
import os
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from rft.code.labels import is_code_label
from rft.code_server.grade import stated
from rft.grading import grade, open_channel
from rft.grading.short_answer import is_search_label
from rft.record.conversation import MODEL, numbers_of, segments
from rft.record.files import replace_bytes
from rft.record.samples import TRAINING, drop_oldest, file_name

if TYPE_CHECKING:
    import torch
    from openrlhf.trainer.ppo_utils.experience_maker import Experience
    from transformers import PreTrainedTokenizerBase

LEVEL = 6  # of gzip: 36% of docs/*.md; 9 takes 1.4 times as long for the same
EXTRACTION = {2.0: "boxed", 1.0: "last number", 0.0: "none"}


def write_samples(
    args: Namespace,
    global_step: int,
    samples: list["Experience"],
    tokenizer: "PreTrainedTokenizerBase",
    kind: str = TRAINING,
) -> None:
    """Write a complete `$SAMPLES_LOG_DIR/<kind>_step<N>.jsonl.gz`; does nothing when the variable is unset.

    Then the oldest files beyond `--samples_keep_gb` are deleted (`rft.record.samples.drop_oldest`).

    Args:
        args: `samples_every`, steps from one file of training to the next, 0 for none; `samples_keep_gb`.
        global_step: the step that trained on these samples, from 1; of an evaluation: after which.
        samples: OpenRLHF `Experience`s of one sample each, in the order of the prompts.
        tokenizer: decodes the response, special tokens kept.
        kind: `samples` of training, or `eval_samples` of an evaluation in the loop, of which each is kept.

    Each line: `prompt`, `response`, `label`, `reward`, `prompt_tokens`, `response_tokens`, `extracted_answer` and
    `extraction` (`boxed`, `last number`, `none`) as `rft.grading` sees the response, of a code task the program and the
    method of `rft.code.extract`, of a search task what the agent took for the answer (`answer`, `none`); then every
    number and text that the engine and the reward function or agent logged (`adapter_version`, `truncated`,
    `parse_method`, …). The verdict is the reward's; none is made here. A sample of an agent has `turns` too, what
    `response` consists of: see `turns_of_sample`.
    """
    directory = os.environ.get("SAMPLES_LOG_DIR")
    left_out = kind == TRAINING and (not args.samples_every or global_step % args.samples_every)
    if not directory or left_out:
        return
    path = Path(directory, file_name(kind, global_step))
    lines = "".join(sample_line(sample, tokenizer) for sample in samples)
    data = lines.encode("utf-8", "replace")  # a text that an agent logs may hold half a surrogate pair
    replace_bytes(path, gzip.compress(data, LEVEL, mtime=0))  # equal samples, equal bytes
    path.with_suffix("").unlink(missing_ok=True)  # of a run that an earlier version began
    drop_oldest(path.parent, args.samples_keep_gb * 1e9, path)


def sample_line(sample: "Experience", tokenizer: "PreTrainedTokenizerBase") -> str:
    """One sample as a JSON line, newline last; numbers that are not finite become null."""
    # action_mask[i] speaks of token i + 1; a response without tokens has no action.
    tokens, parts = sample.sequences[0], segments([0, *sample.action_mask[0].tolist()])
    first = parts[0][1] if parts else len(tokens)
    prompt, label, texts = sample.prompts[0], sample.labels[0], getattr(sample, "texts", {})
    response = tokenizer.decode(tokens[first:], skip_special_tokens=False)
    answer, method = _stated(response, prompt, label, texts)
    record = {
        "prompt": prompt,
        "response": response,
        "label": label,
        "reward": None if sample.rewards is None else _number(sample.rewards[0]),
        "prompt_tokens": first,
        "response_tokens": len(tokens) - first,
        "extracted_answer": answer,
        "extraction": method,
    }
    skipped = ("reward", "response_length", "total_length", "turns")
    record |= {name: _number(value[0]) for name, value in sample.info.items() if name not in skipped}
    record |= texts
    if "turns" in sample.info or len(parts) > 1:
        record["turns"] = turns_of_sample(tokens, parts, tokenizer, numbers_of(texts.get("turn_seconds")))
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def turns_of_sample(
    tokens: "torch.Tensor",
    parts: list[tuple[str, int, int]],
    tokenizer: "PreTrainedTokenizerBase",
    seconds: list[float],
) -> list[dict]:
    """What the model sampled (`by` is `model`) and what its environment wrote (`environment`), in order.

    Args:
        tokens: ids of the whole sequence (tokens,).
        parts: of `rft.record.conversation.segments`.
        seconds: of sampling, one a turn of the model; otherwise they are left out.

    Returns:
        dicts of `by`, `text` (special tokens kept), `tokens` (how many) and, of the model's, `seconds`.
    """
    turns = [
        {"by": by, "text": tokenizer.decode(tokens[start:end], skip_special_tokens=False), "tokens": end - start}
        for by, start, end in parts
    ]
    sampled = [turn for turn in turns if turn["by"] == MODEL]
    for turn, took in zip(sampled, seconds if len(seconds) == len(sampled) else [], strict=False):
        turn["seconds"] = took
    return turns


def _stated(response: str, prompt: str, label: object, texts: dict[str, str]) -> tuple[str | None, str]:
    """What a response answers, and how that was found."""
    if is_code_label(label):
        return stated(response, prompt, label)[:2]
    if is_search_label(label):  # the agent has parsed its own tags
        answer = texts.get("answer")
        return (answer, "answer") if answer else (None, "none")
    verdict = grade(response, None if label is None else str(label), open_channel(prompt))
    return verdict.answer, EXTRACTION[verdict.method]


def _number(value) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
