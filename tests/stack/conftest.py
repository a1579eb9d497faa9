"""Real vLLM engines, shared by the tests of a module."""

import pytest

from rft.serving.engine import open_engine

LIMITS = {"max_model_len": 128, "max_num_batched_tokens": 64, "max_num_seqs": 16}  # prompts come in pieces too


def starter(request, checkpoint, **options):
    """A function that returns an engine, started at its first call: one that cannot start fails a test."""
    started = []

    def engine():
        if not started:
            started.append(open_engine(str(checkpoint), tensor_parallel_size=request.param, **LIMITS, **options))
        return started[0]

    yield engine
    for llm in started:
        llm.llm_engine.engine_core.shutdown()


# Not for the whole session: idle tensor-parallel workers poll, which takes a core from the training run.
@pytest.fixture(scope="module", params=[1, 2], ids=["tp1", "tp2"])
def start_engine(request, checkpoint):
    """Starts the module's engine, into whose weights adapters are merged."""
    yield from starter(request, checkpoint)


@pytest.fixture
def engine(start_engine):
    """A vLLM engine over the untrained checkpoint, at tensor-parallel size 1 and then 2."""
    return start_engine()


@pytest.fixture(scope="module", params=[1, 2], ids=["tp1", "tp2"])
def start_exact_engine(request, checkpoint):
    """Starts the module's engine, which has room for adapters of rank 12 beside its weights."""
    yield from starter(request, checkpoint, lora_rank=12, lora_modules=["q_proj", "k_proj", "v_proj", "o_proj"])


@pytest.fixture
def exact_engine(start_exact_engine):
    """As `engine`, with adapters served exactly."""
    return start_exact_engine()
