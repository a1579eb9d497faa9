"""Seeded requests on the CPU, whose random generators cannot be set back by an offset."""

import torch


def rewind(generator: torch.Generator, drawn: int, vocabulary: int) -> None:
    """Put a request's CPU generator back to where it was after `drawn` kept samples.

    A request whose prompt is computed in chunks takes part in sampling before its prompt is done, and the draw is
    discarded. CUDA generators are set back by their offset; a CPU generator is seeded again and run forward, one
    exponential draw of `vocabulary` float32 values a sample, as vLLM's sampler does it.
    """
    generator.manual_seed(generator.initial_seed())
    scratch = torch.empty(vocabulary)
    for _ in range(drawn):
        scratch.exponential_(generator=generator)
