"""Write an adapter merged into its base in bf16, and check the merged model against the served adapter.

Never back into MXFP4: at the size of a LoRA update nearly all 4-bit codes round to what they were, so the adapter would
be erased. The merged weights are `bf16(W0 + s·B@A)`, the very bits of `--lora_serving merged`.
"""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError

from rft.evals import probe
from rft.evals.models import MERGE_RECORD, Model, adapter_digest, adapter_room, content
from rft.evals.prompts import load_tokenizer, render, require_short
from rft.hooks.saved_adapter import read_adapter
from rft.problems import read_problems

if TYPE_CHECKING:
    from rft.evals.settings import Settings

BOUND = 0.05  # mean |Δ log-probability| a token, nats, between merged model and served adapter


def require_new(output: Path) -> None:
    """Raise ValueError where a merged model would be written over something."""
    if output.exists():
        raise ValueError(f"found {output} already; wanted a new directory; remove it or pass another --merge-output")


def merge_and_check(model: Model, output: Path, dataset: Path, settings: "Settings", bound: float = BOUND) -> dict:
    """Write `output`, a bf16 checkpoint, once its log-probabilities agree with those of the served adapter.

    Args:
        model: an adapter.
        output: directory that is not there yet.
        dataset: problems for the comparison.
        settings: `rft.evals.settings.Settings`.
        bound: largest mean |Δ| that passes.

    Returns:
        What `merged_from.json` holds: digests, `mismatch` (mean |Δ|) and `worst` (largest).

    Raises:
        ValueError: the directory is there already, or the merged model differs; nothing is left then.
        OSError: the disk is full; nothing is left then either.
    """
    require_new(output)
    problems = read_problems(dataset)
    prompts = render(load_tokenizer(model.base), problems, settings.system_prompt, settings.reasoning_effort)
    require_short(problems, prompts, settings.max_prompt_tokens)
    partial = output.with_name(f"{output.name}.partial")
    if partial.exists():  # what a kill left
        shutil.rmtree(partial)
    try:
        write_merged(model, partial)
        mismatch, worst = _compare(model, partial, [prompt.tokens for prompt in prompts[: probe.PROMPTS]], settings)
        if mismatch > bound:
            raise ValueError(
                f"model {model.name}: the merged model differs from the served adapter by {mismatch:.3f} nats a token, "
                f"wanted at most {bound}; evaluate the adapter itself, which needs no merge"
            )
        record = {
            "base": content(model.base),
            "adapter": adapter_digest(model.path),
            "format": "bf16",
            "mismatch": mismatch,
            "worst": worst,
        }
        (partial / MERGE_RECORD).write_text(json.dumps(record, indent=1) + "\n")
        partial.replace(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print(f"merged {model.name} into {output}: mean |Δ| {mismatch:.3g}, worst {worst:.3g} nats against the adapter")
    return record


def write_merged(model: Model, directory: Path) -> None:
    """The base in bf16 with the adapter's update added, as a checkpoint that transformers and vLLM read."""
    from rft.serving.served import merged

    manifest, buffer = read_adapter(model.path)
    whole = probe.load_reference(model.base, "cpu")
    with torch.no_grad():
        for layer in manifest["layers"]:
            weight = whole.get_parameter(layer["name"])
            weight.copy_(merged(weight, layer, buffer))
    if hasattr(whole.config, "quantization_config"):
        del whole.config.quantization_config
    # transformers refuses to save what it takes for a quantised model; its weights are plain bf16 by now.
    whole.is_quantized, whole.hf_quantizer = False, None
    try:
        whole.save_pretrained(directory)
    except SafetensorError as error:  # what safetensors makes of every fault in writing, a full disk among them
        raise OSError(f"{directory}: the merged weights cannot be written ({error}); free space, run again") from None
    load_tokenizer(model.base).save_pretrained(directory)


def _compare(model: Model, directory: Path, prompts: list[list[int]], settings) -> tuple[float, float]:
    """Mean and largest |Δ log-probability| between the served adapter and the merged model, one after the other."""
    from rft.evals.server import Server

    longest = settings.max_prompt_tokens + settings.max_tokens
    server = Server(
        longest,
        {model.base: prompts, directory: prompts},
        {model.base: adapter_room([model], model.base, settings.serving), directory: {}},
        settings.serving,
        settings.reference,
        settings.tensor_parallel_size,
    )
    try:
        llm, request, _ = server.serve(model)
        sequences = server.sequences
        served = probe.engine_log_probs(llm, sequences, request)
        llm, _, _ = server.serve(Model(model.name, directory, "merged", directory))
        difference = (probe.engine_log_probs(llm, sequences) - served).abs()
    finally:
        server.close()
    return difference.mean().item(), difference.max().item()
