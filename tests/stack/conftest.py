"""Real vLLM engines and one real training run, shared by all stack tests."""

import pytest

from rft.engine import open_engine
from rft.tiny.checkpoint import build_model, save_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """An untrained tiny gpt-oss with MXFP4 experts."""
    path = tmp_path_factory.mktemp("tiny-gpt-oss")
    save_checkpoint(build_model(seed=3), path)
    return path


# Not for the whole session: idle tensor-parallel workers poll, which takes a core from the training run.
@pytest.fixture(scope="module", params=[1, 2], ids=["tp1", "tp2"])
def engine(request, checkpoint):
    """A vLLM engine over the untrained checkpoint, at tensor-parallel size 1 and then 2."""
    llm = open_engine(str(checkpoint), max_model_len=128, tensor_parallel_size=request.param)
    yield llm
    llm.llm_engine.engine_core.shutdown()
