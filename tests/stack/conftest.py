"""Real vLLM engines, shared by the tests of a module."""

import pytest

from rft.engine import open_engine


# Not for the whole session: idle tensor-parallel workers poll, which takes a core from the training run.
@pytest.fixture(scope="module", params=[1, 2], ids=["tp1", "tp2"])
def engine(request, checkpoint):
    """A vLLM engine over the untrained checkpoint, at tensor-parallel size 1 and then 2."""
    llm = open_engine(str(checkpoint), max_model_len=128, tensor_parallel_size=request.param)
    yield llm
    llm.llm_engine.engine_core.shutdown()
