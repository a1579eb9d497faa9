"""Before any number: does the engine compute with the adapter, and as the PEFT model does?

A silently dropped adapter, or one with another scaling, gives a plausible number of the wrong policy (vLLM #50252).
Log-probabilities, in nats, of fixed tokens: a few prompts, each continued by the base model's own greedy tokens.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rft.hooks import float32_head, rotary
from rft.options.remote_code import trusted

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.lora.request import LoRARequest

PROMPTS, CONTINUATION, PROMPT_TOKENS = 4, 32, 1024
AGREEMENT = 0.05  # mean |Δ| between engine and reference that bf16 may cause
FLIPS = 0.2  # the same as a share of the effect: the larger it is, the more tokens bf16 sends to another expert
BASE_AGREEMENT = 0.1  # the same for the base model, where quantised kernels add to it
AUDIBLE = 3.0  # times the noise: from here on the adapter's effect can be measured, and must have the right size
SIZE = (0.5, 1.5)  # engine's effect over reference's, by least squares
SIZE_WITH_FLIPS = (0.9, 1.1)  # the same where flips excuse a difference; 0.936 to 1.010 on 24 random tiny adapters


def continued(llm: "LLM", prompts: list[list[int]]) -> list[tuple[list[int], int]]:
    """(tokens, length of the prompt) of the probe's sequences; the engine must serve the base model."""
    from vllm import SamplingParams

    chosen = [tokens[-PROMPT_TOKENS:] for tokens in prompts[:PROMPTS]]
    limit = llm.llm_engine.model_config.max_model_len - 1
    params = [SamplingParams(temperature=0, max_tokens=min(CONTINUATION, limit - len(tokens))) for tokens in chosen]
    outputs = llm.generate([{"prompt_token_ids": tokens} for tokens in chosen], params, use_tqdm=False)
    return [
        (tokens + list(output.outputs[0].token_ids), len(tokens))
        for tokens, output in zip(chosen, outputs, strict=True)
    ]


def engine_log_probs(
    llm: "LLM", sequences: list[tuple[list[int], int]], lora_request: "LoRARequest | None" = None
) -> torch.Tensor:
    """Log-probability of every continuation token as the engine computes it, shape (continuation tokens,), float64."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    prompts = [{"prompt_token_ids": tokens} for tokens, _ in sequences]
    outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=lora_request)
    values = []
    for (tokens, start), output in zip(sequences, outputs, strict=True):
        values += [output.prompt_logprobs[i][tokens[i]].logprob for i in range(start, len(tokens))]
    return torch.tensor(values, dtype=torch.float64)


def load_reference(base: Path, device: str):
    """The base model in transformers, bf16, MXFP4 experts dequantised, as the trainer loads it."""
    from transformers import AutoConfig, AutoModelForCausalLM, Mxfp4Config

    quantised = getattr(AutoConfig.from_pretrained(base, trust_remote_code=trusted()), "quantization_config", None)
    options = {"quantization_config": Mxfp4Config(dequantize=True)} if quantised else {}
    model = AutoModelForCausalLM.from_pretrained(
        base, attn_implementation="eager", torch_dtype=torch.bfloat16, trust_remote_code=trusted(), **options
    )
    float32_head.install(model)
    # transformers keeps norms in float32, and the trainer does not.
    return rotary.cast(model, device, torch.bfloat16).eval()


def reference_log_probs(model: torch.nn.Module, sequences: list[tuple[list[int], int]]) -> torch.Tensor:
    """What `engine_log_probs` gives, from a transformers or PEFT model."""
    values = []
    for tokens, start in sequences:
        with torch.no_grad():
            logits = model(torch.tensor([tokens], device=model.device)).logits[0, start - 1 : -1].double()
        chosen = torch.tensor(tokens[start:], device=logits.device)
        values.append(logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0].cpu())
    return torch.cat(values)


def adapter_log_probs(model: torch.nn.Module, adapter: Path, sequences: list[tuple[list[int], int]]) -> torch.Tensor:
    """`reference_log_probs` of the base model with an adapter on it; the model is as before afterwards."""
    from peft import PeftModel

    from rft.hooks import lora_exact

    wrapped = rotary.cast(PeftModel.from_pretrained(model, str(adapter)), torch.bfloat16).eval()
    lora_exact.install(wrapped)
    try:
        return reference_log_probs(wrapped, sequences)
    finally:
        wrapped.unload()


def require_served(
    base: torch.Tensor,
    served: torch.Tensor,
    changed: bool | None,
    reference: tuple[torch.Tensor, torch.Tensor] | None,
) -> dict:
    """Judge the probe.

    Args:
        base, served: the engine's log-probabilities (tokens,) before and with the adapter.
        changed: whether the sync's receipts say that weights changed; None where nobody says.
        reference: the same two from the PEFT model; None leaves that check out.

    Returns:
        The measured numbers, for the report: `moved` (largest |Δ| of the adapter in the engine), and with a reference
        `reference_moved`, `base_mismatch` and `mismatch` (mean |Δ|) and `effect_size` (None below the noise).

    Raises:
        ValueError: the engine serves the base, or disagrees with the PEFT model.
    """
    repair = "check the engine's version and patches (bash apply_patches.sh), then run again"
    record = {"moved": (served - base).abs().max().item(), "reference": "not run"}
    if changed and record["moved"] == 0:
        raise ValueError(
            "probe: weights were changed by the adapter, and no log-probability moved; wanted an engine that computes "
            f"with them; {repair}"
        )
    if reference is None:
        if changed is None and record["moved"] == 0:
            raise ValueError(f"probe: the engine with the adapter is the base model; wanted another model; {repair}")
        return record
    reference_base, reference_served = reference
    wanted, found = reference_served - reference_base, served - base
    noise, mismatch = ((a - b).abs().mean().item() for a, b in ((base, reference_base), (served, reference_served)))
    effect = wanted.abs().mean().item()
    audible = effect > AUDIBLE * max(noise, 1e-4)
    size = ((found @ wanted) / (wanted @ wanted)).item() if audible else None
    record |= {
        "reference": "PEFT",
        "reference_moved": wanted.abs().max().item(),
        "base_mismatch": noise,
        "mismatch": mismatch,
        "effect_size": size,
    }
    flips = FLIPS * effect if size is not None and SIZE_WITH_FLIPS[0] <= size <= SIZE_WITH_FLIPS[1] else 0
    bound = max(AGREEMENT, 2 * noise, flips)
    if noise > BASE_AGREEMENT:
        raise ValueError(
            f"probe: engine and transformers differ by {noise:.3f} nats on the base model, wanted at most "
            f"{BASE_AGREEMENT}; {repair}"
        )
    if changed is None and record["moved"] == 0 < record["reference_moved"]:
        raise ValueError(f"probe: the engine dropped the adapter: it serves the base model; {repair}")
    if size is not None and not SIZE[0] <= size <= SIZE[1]:
        raise ValueError(
            f"probe: the adapter's effect in the engine is {size:.2f} times the PEFT model's, wanted 1 (mean |Δ| "
            f"{mismatch:.3f} nats); the adapter was dropped in part or scaled differently; {repair}"
        )
    if mismatch > bound:
        raise ValueError(
            f"probe: engine and PEFT model differ by {mismatch:.3f} nats a token, wanted at most {bound:.3f}; {repair}"
        )
    return record
