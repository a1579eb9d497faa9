"""Draw samples from a running engine, each handed on as soon as it is finished."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from rft.hooks.rollout_seeds import sample_seed

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.lora.request import LoRARequest


class Request(NamedTuple):
    """One sample to draw."""

    prompt: str  # digest
    tokens: list[int]
    index: int


def parameters(temperature: float, top_p: float, max_tokens: int, seed: int, repeat: int) -> dict:
    """What of the sampling decides a sample, besides prompt and index.

    Greedy samples have no seed; a repeat of a greedy run differs by what the engine batches together.
    """
    drawn = {"seed": seed + repeat} if temperature > 0 else {"repeat": repeat}
    return {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, **drawn}


def draw(
    llm: "LLM",
    requests: list[Request],
    sampling: dict,
    keep: Callable[[dict], None],
    lora_request: "LoRARequest | None" = None,
) -> None:
    """Draw every request; `keep` gets each sample when it is finished, in the order in which they finish.

    Args:
        llm: a `vllm.LLM`.
        requests: prompts and indices; index i of a prompt has its own seed, the same for every model, so that two
            models are compared on common random numbers.
        sampling: see `parameters`.
        keep: called with `prompt`, `index`, `response` (special tokens kept), `tokens`, `finish`.
        lora_request: vLLM's, where the engine serves the adapter natively.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from vllm import SamplingParams

    tokenizer, engine, waiting = llm.get_tokenizer(), llm.llm_engine, {}
    order = list(requests)
    if sampling.get("repeat"):
        random.Random(sampling["repeat"]).shuffle(order)  # other neighbours in the batch
    columns = (TextColumn("sampling"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        for request in order:
            name = f"{request.prompt}/{request.index}"
            seed = sample_seed(sampling["seed"], 0, request.prompt, 0, request.index) if "seed" in sampling else None
            params = SamplingParams(
                temperature=sampling["temperature"],
                top_p=sampling["top_p"],
                max_tokens=sampling["max_tokens"],
                seed=seed,
                skip_special_tokens=False,
            )
            engine.add_request(name, {"prompt_token_ids": request.tokens}, params, lora_request=lora_request)
            waiting[name] = request
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("", total=len(order))
            while engine.has_unfinished_requests():
                for output in engine.step():
                    if not output.finished:
                        continue
                    request, completion = waiting.pop(output.request_id), output.outputs[0]
                    keep(
                        {
                            "prompt": request.prompt,
                            "index": request.index,
                            "response": tokenizer.decode(completion.token_ids, skip_special_tokens=False),
                            "tokens": len(completion.token_ids),
                            "finish": completion.finish_reason,
                        }
                    )
                    progress.advance(task)
    finally:
        if waiting:  # a full disk: the engine may serve another model next
            engine.abort_request(list(waiting))
