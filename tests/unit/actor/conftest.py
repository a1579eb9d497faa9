"""Without a GPU the kernels are run by Triton's interpreter, which has to be chosen before Triton is imported."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def interpreter():
    """Kernels take tensors of a CPU."""
    import triton
    from triton.runtime.interpreter import InterpretedFunction

    @triton.jit
    def kernel():
        pass

    if not isinstance(kernel, InterpretedFunction):
        pytest.skip("Triton was imported without TRITON_INTERPRET=1: its kernels take tensors of a GPU only")
