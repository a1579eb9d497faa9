"""The tokenizer goes to each rollout engine once, not with every prompt.

Upstream hands it to `LLMRayActor.generate_responses`, so that Ray pickles it for each prompt and the engine's actor
unpickles it, in the event loop that also reads what the engine has sampled. gpt-oss's has 201,088 entries: 12 MB, 0.5 s
to pickle and 1.1 to 1.4 s to unpickle on a CPU core (docs/benchmarks.md).
"""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openrlhf.trainer.ppo_utils.experience_maker import SamplesGenerator
    from openrlhf.trainer.ray.vllm_engine import LLMRayActor
    from ray import ObjectRef
    from transformers import PreTrainedTokenizerBase


def reference(generator: "SamplesGenerator") -> "list[ObjectRef] | None":
    """Where its tokenizer lies in Ray's object store, put there by the first call; None for a generator without one.

    In a list, since Ray replaces an argument that is a reference by its value, for each call anew.
    """
    if generator.tokenizer is None:
        return None
    if "tokenizer_reference" not in generator.__dict__:
        import ray

        generator.tokenizer_reference = [ray.put(generator.tokenizer)]
    return generator.tokenizer_reference


async def fetched(engine: "LLMRayActor", sent: "list[ObjectRef] | None") -> "PreTrainedTokenizerBase | None":
    """The tokenizer of `reference`, which the actor reads once and keeps."""
    if sent is None:
        return None
    held = engine.__dict__.setdefault("tokenizers", {})
    if sent[0] not in held:
        held[sent[0]] = asyncio.ensure_future(_resolved(sent[0]))  # the prompts of a rollout come all at once
    return await held[sent[0]]


async def _resolved(sent: "ObjectRef") -> "PreTrainedTokenizerBase":
    return await sent
