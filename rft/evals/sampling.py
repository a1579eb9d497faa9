"""Draw samples from a running engine, each handed on as soon as it is finished."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rft.hooks.rollout_seeds import sample_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.outputs import CompletionOutput


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
    tokenizer, engine, waiting = llm.get_tokenizer(), llm.llm_engine, {}
    try:
        for request in ordered(requests, sampling):
            name = f"{request.prompt}/{request.index}"
            params = params_of(request, sampling)
            engine.add_request(name, {"prompt_token_ids": request.tokens}, params, lora_request=lora_request)
            waiting[name] = request
        with progress_of(len(requests), "sampling") as advance:
            while engine.has_unfinished_requests():
                for output in engine.step():
                    if output.finished:
                        keep(_sample(waiting.pop(output.request_id), output.outputs[0], tokenizer))
                        advance()
    finally:
        if waiting:  # a full disk: the engine may serve another model next
            engine.abort_request(list(waiting))


def ordered(requests: list[Request], sampling: dict) -> list[Request]:
    """The requests in the order in which they are drawn; a repeat of a greedy run has other neighbours in the batch."""
    order = list(requests)
    if sampling.get("repeat"):
        random.Random(sampling["repeat"]).shuffle(order)
    return order


def params_of(request: Request, sampling: dict) -> "SamplingParams":
    """What one sample is drawn with, its own seed among it where it is not greedy."""
    from vllm import SamplingParams

    return SamplingParams(
        temperature=sampling["temperature"],
        top_p=sampling["top_p"],
        max_tokens=sampling["max_tokens"],
        seed=sample_seed(sampling["seed"], 0, request.prompt, 0, request.index) if "seed" in sampling else None,
        skip_special_tokens=False,
    )


@contextmanager
def progress_of(total: int, what: str) -> Iterator[Callable[[], None]]:
    """A bar on standard error; yields what moves it by one."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield partial(progress.advance, progress.add_task("", total=total))


def _sample(request: Request, completion: "CompletionOutput", tokenizer: "PreTrainedTokenizerBase") -> dict:
    return {
        "prompt": request.prompt,
        "index": request.index,
        "response": tokenizer.decode(completion.token_ids, skip_special_tokens=False),
        "tokens": len(completion.token_ids),
        "finish": completion.finish_reason,
    }
