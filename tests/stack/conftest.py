"""Real vLLM engines, shared by the tests of a module."""

import pytest

from rft.engine import open_engine


# Not for the whole session: idle tensor-parallel workers poll, which takes a core from the training run.
@pytest.fixture(scope="module", params=[1, 2], ids=["tp1", "tp2"])
def start_engine(request, checkpoint):
    """A function that returns the module's engine, started at its first call: one that cannot start fails a test."""
    started = []

    def engine():
        if not started:
            # A step takes half of the longest prompt, so that prompts are computed in pieces too.
            limits = {"max_model_len": 128, "max_num_batched_tokens": 64, "max_num_seqs": 16}
            started.append(open_engine(str(checkpoint), tensor_parallel_size=request.param, **limits))
        return started[0]

    yield engine
    for llm in started:
        llm.llm_engine.engine_core.shutdown()


@pytest.fixture
def engine(start_engine):
    """A vLLM engine over the untrained checkpoint, at tensor-parallel size 1 and then 2."""
    return start_engine()
