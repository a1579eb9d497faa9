"""The kernels of log-probabilities on a GPU, at gpt-oss's vocabulary. Needs torch, Triton and pytest only.

python -m pytest --noconftest tests/unit/actor/test_gpu_log_probs.py     a GPU of 80 GB, a minute
"""

import pytest
import torch
from log_probs_cases import HIDDEN, VOCABULARY, close_to_float64, kernels_equal_reference, operands

from rft.actor import log_probs as module
from rft.actor.log_probs import log_probs, reference_gradient, reference_statistics

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_kernels_equal_the_reference(dtype):
    torch.manual_seed(0)
    for rows, vocabulary, temperature in ((1, 1, 1.0), (3, 2049, 0.3), (130, VOCABULARY, 1.0)):
        logits = (4 * torch.randn(rows, vocabulary, device="cuda")).to(dtype)
        labels = torch.randint(vocabulary, (rows,), device="cuda")
        kernels_equal_reference(logits, labels, temperature, torch.bfloat16)


@pytest.mark.parametrize("float32_logits", [True, False])
def test_real_head_on_a_gpu_is_as_close_to_float64_as_its_roundings(float32_logits):
    x, weight, labels = operands(300, VOCABULARY, HIDDEN, torch.bfloat16, device="cuda")
    close_to_float64(x, weight, labels, 0.9, float32_logits=float32_logits)


def test_two_runs_on_a_gpu_have_the_same_bits():
    x, weight, labels = operands(1500, VOCABULARY, HIDDEN, torch.bfloat16, device="cuda")
    runs = []
    for _ in range(2):
        leaf = x.detach().requires_grad_()
        scored, entropy = log_probs(leaf, weight, labels, entropy="gradient")
        (scored.sum() + entropy.sum()).backward()
        runs.append((scored, entropy, leaf.grad))
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


@pytest.mark.parametrize(("entropy", "units"), [("none", 1), ("metric", 1), ("gradient", 2)])
def test_peak_memory_is_one_chunk_and_a_gradient_a_row(entropy, units):
    rows = 4 * module.ROWS
    x, weight, labels = operands(rows, VOCABULARY, HIDDEN, torch.bfloat16, device="cuda")
    x.requires_grad_()
    log_probs(x[:8], weight, labels[:8], entropy=entropy)[0].sum().backward()  # cuBLAS takes its workspace
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    scored, _ = log_probs(x, weight, labels, entropy=entropy)
    peak = torch.cuda.max_memory_allocated() - before
    chunk = module.ROWS * VOCABULARY * (4 + 2)  # float32 logits, their gradient in bf16
    kept = units * rows * HIDDEN * 4
    product = module.ROWS * HIDDEN * 4
    assert peak <= chunk + kept + product + rows * 64 + 2**21  # vectors, rounding of the allocator
    scored.sum().backward()
    after = torch.cuda.memory_allocated() - before
    assert after <= kept + rows * HIDDEN * 2 + rows * 64 + 2**21


def test_offsets_beyond_31_bits():
    """11,000 rows of 201,088 logits in one chunk: the last rows lie behind 2**31 elements."""
    rows = 11_000
    logits = torch.randn(rows, VOCABULARY, device="cuda", dtype=torch.bfloat16)
    labels = torch.arange(rows, device="cuda")
    found = module._statistics(logits, labels, 1.0)
    gradient = module._gradient(logits, labels, *found[1:], 1.0, torch.bfloat16, False)
    last = slice(rows - 2, rows)
    wanted = reference_statistics(logits[last].double(), labels[last], 1.0)
    for one, other in zip(found, wanted, strict=True):
        assert (one[last] - other).abs().max() < 2**-15
    slope = reference_gradient(logits[last].double(), labels[last], *wanted[1:], 1.0, torch.float64, False)
    torch.testing.assert_close(gradient[last].double(), slope, rtol=2**-7, atol=1e-6)
