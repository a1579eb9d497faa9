"""What the policy generated: the samples of a training step as JSON lines."""

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rft.grading import grade, open_channel
from rft.record.files import replace_text

if TYPE_CHECKING:
    from openrlhf.trainer.ppo_utils.experience_maker import Experience
    from transformers import PreTrainedTokenizerBase

EXTRACTION = {2.0: "boxed", 1.0: "last number", 0.0: "none"}


def write_samples(global_step: int, samples: list, tokenizer: "PreTrainedTokenizerBase", kind: str = "samples") -> None:
    """Write a complete `$SAMPLES_LOG_DIR/<kind>_step<N>.jsonl`; does nothing when the variable is unset.

    Args:
        global_step: the step that trained on these samples, from 1.
        samples: OpenRLHF `Experience`s of one sample each, in the order of the prompts.
        tokenizer: decodes the response, special tokens kept.
        kind: `samples` of training, or `eval_samples` of an evaluation in the loop.

    Each line: `prompt`, `response`, `label`, `reward`, `prompt_tokens`, `response_tokens`, `extracted_answer` and
    `extraction` (`boxed`, `last number`, `none`) as `rft.grading` sees the response, then every number and text that
    the engine and the reward function logged (`adapter_version`, `truncated`, `parse_method`, …).
    """
    directory = os.environ.get("SAMPLES_LOG_DIR")
    if not directory:
        return
    path = Path(directory) / f"{kind}_step{global_step}.jsonl"
    replace_text(path, "".join(sample_line(sample, tokenizer) for sample in samples))


def sample_line(sample: "Experience", tokenizer: "PreTrainedTokenizerBase") -> str:
    """One sample as a JSON line, newline last; numbers that are not finite become null."""
    tokens, actions = sample.sequences[0], sample.action_mask[0].nonzero().flatten()
    # action_mask[i] speaks of token i + 1; a response without tokens has no action.
    first = int(actions[0]) + 1 if len(actions) else len(tokens)
    prompt, label = sample.prompts[0], sample.labels[0]
    response = tokenizer.decode(tokens[first:], skip_special_tokens=False)
    verdict = grade(response, None if label is None else str(label), open_channel(prompt))
    record = {
        "prompt": prompt,
        "response": response,
        "label": label,
        "reward": None if sample.rewards is None else _number(sample.rewards[0]),
        "prompt_tokens": first,
        "response_tokens": len(tokens) - first,
        "extracted_answer": verdict.answer,
        "extraction": EXTRACTION[verdict.method],
    }
    skipped = ("reward", "response_length", "total_length")
    record |= {name: _number(value[0]) for name, value in sample.info.items() if name not in skipped}
    record |= getattr(sample, "texts", {})
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def _number(value) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
