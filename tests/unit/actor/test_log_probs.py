"""Log-probabilities with the gradient made in the forward pass, against autograd through a log-softmax."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rft.actor import log_probs as module
from rft.actor.log_probs import ENTROPIES, log_probs, reference_gradient, reference_statistics

ROOT = Path(__file__).resolve().parents[3]
VOCABULARY, HIDDEN = 201_088, 2_880  # of gpt-oss


def operands(rows: int, vocabulary: int, hidden: int, dtype: torch.dtype, seed: int = 0, device: str = "cpu"):
    """Hidden states, a head whose logits have a deviation of 4, and labels."""
    torch.manual_seed(seed)
    x = torch.randn(rows, hidden).to(device, dtype)
    weight = (4 * hidden**-0.5 * torch.randn(vocabulary, hidden)).to(device, dtype)
    return x, weight, torch.randint(vocabulary, (rows,)).to(device)


def by_autograd(x, weight, labels, temperature, grad, grad_entropy):
    """Log-probabilities, entropies and the gradient of their weighted sum in float64, by autograd."""
    x = x.detach().double().requires_grad_()
    log_p = (x @ weight.double().T / temperature).log_softmax(-1)
    scored, entropy = log_p.gather(1, labels[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    (scored @ grad.double() + entropy @ grad_entropy.double()).backward()
    return scored.detach(), entropy.detach(), x.grad


@settings(max_examples=60)
@given(
    rows=st.integers(0, 9),
    vocabulary=st.integers(1, 70),
    hidden=st.integers(1, 20),
    temperature=st.floats(0.1, 10),
    entropy=st.sampled_from(ENTROPIES),
    float32_logits=st.booleans(),
    chunk=st.integers(1, 10),
    seed=st.integers(0, 999),
)
def test_float64_is_exact(rows, vocabulary, hidden, temperature, entropy, float32_logits, chunk, seed):
    x, weight, labels = operands(rows, vocabulary, hidden, torch.float64, seed)
    grad, grad_entropy = torch.randn(2, rows, dtype=torch.float64)
    grad_entropy = grad_entropy if entropy == "gradient" else torch.zeros_like(grad)
    wanted, wanted_entropy, wanted_grad = by_autograd(x, weight, labels, temperature, grad, grad_entropy)
    x.requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS", chunk)
        scored, found_entropy = log_probs(x, weight, labels, temperature, float32_logits, entropy)
    loss = scored @ grad
    if entropy == "gradient":
        loss = loss + found_entropy @ grad_entropy
    loss.backward()
    exact = {"atol": 1e-10, "rtol": 1e-10}
    torch.testing.assert_close(scored.detach(), wanted, **exact)
    torch.testing.assert_close(x.grad, wanted_grad, **exact)
    if entropy == "none":
        assert found_entropy is None
    else:
        torch.testing.assert_close(found_entropy.detach(), wanted_entropy, **exact)
        assert found_entropy.requires_grad == (entropy == "gradient")


def close_to_float64(x, weight, labels, temperature, float32_logits=True):
    """Compare with autograd in float64 over the same operands, within what the roundings named here allow."""
    grad, grad_entropy = torch.randn(2, len(x), device=x.device)
    wanted, wanted_entropy, wanted_grad = by_autograd(x, weight, labels, temperature, grad, grad_entropy)
    x = x.detach().requires_grad_()
    scored, entropy = log_probs(x, weight, labels, temperature, float32_logits, "gradient")
    assert scored.dtype == entropy.dtype == torch.float32
    (scored @ grad + entropy @ grad_entropy).backward()
    assert x.grad.dtype == x.dtype
    size = (x.double() @ weight.double().T).abs().max().item()
    # Logits: sums of products in float32 in any order, or rounded to the weight's dtype.
    unit = torch.finfo(torch.float32 if float32_logits else weight.dtype).eps
    bound = (x.shape[1] * 2**-24 + unit) * (size + 1) / temperature + 1e-5
    assert (scored.detach() - wanted).abs().max() <= 2 * bound
    assert (entropy.detach() - wanted_entropy).abs().max() <= 2 * bound * (size / temperature + 1)
    # The gradient of the logits is rounded to the weight's dtype, as it is in a backward pass, and so is the result.
    error = (x.grad.double() - wanted_grad).norm() / wanted_grad.norm()
    assert error <= torch.finfo(weight.dtype).eps + 4 * bound


@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_short_dtypes_are_as_close_to_float64_as_their_roundings(dtype, temperature):
    close_to_float64(*operands(37, 1000, 64, dtype), temperature)


def test_rounded_logits_are_those_of_a_bf16_head():
    """Bit for bit what a head in bf16 followed by a cast gives, as OpenRLHF computes it."""
    x, weight, labels = operands(37, 1000, 64, torch.bfloat16)
    rounded, _ = log_probs(x, weight, labels, 0.7, float32_logits=False)
    logits = (x @ weight.T).float() / 0.7
    wanted = (logits - logits.logsumexp(-1)[:, None]).gather(1, labels[:, None])[:, 0]
    assert torch.equal(rounded, wanted)
    assert not torch.equal(rounded, log_probs(x, weight, labels, 0.7)[0])


def saved_bytes(loss: torch.Tensor) -> int:
    """Bytes of what a loss's graph has saved."""
    found, queue, seen = 0, [loss.grad_fn], set()
    while queue:
        node = queue.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found += sum(t.numel() * t.element_size() for t in getattr(node, "saved_tensors", ()) if t is not None)
        queue += [following for following, _ in node.next_functions]
    return found


@pytest.mark.parametrize(("entropy", "units"), [("none", 1), ("metric", 1), ("gradient", 2)])
def test_graph_holds_a_gradient_a_row_and_no_logits(entropy, units):
    x, weight, labels = operands(37, 1000, 64, torch.bfloat16)
    scored, _ = log_probs(x.requires_grad_(), weight, labels, entropy=entropy)
    assert saved_bytes(scored) == units * 37 * 64 * 4


def test_without_gradient_nothing_is_kept():
    x, weight, labels = operands(37, 1000, 64, torch.float32)
    with_graph, _ = log_probs(x.requires_grad_(), weight, labels)
    with torch.no_grad():
        scored, entropy = log_probs(x, weight, labels, entropy="gradient")
    assert torch.equal(scored, with_graph.detach())
    assert scored.grad_fn is None
    assert entropy.grad_fn is None


def test_wrong_input_is_refused():
    x, weight, labels = operands(4, 10, 8, torch.float32)
    with pytest.raises(ValueError, match="found a head that requires a gradient"):
        log_probs(x, weight.requires_grad_(), labels)
    with pytest.raises(ValueError, match=r"found labels \(3,\) for hidden states \(4, 8\)"):
        log_probs(x, weight.detach(), labels[:3])
    with pytest.raises(ValueError, match="found entropy 'exact', wanted one of none, metric, gradient"):
        log_probs(x, weight.detach(), labels, entropy="exact")


# The kernels: interpreted on a CPU, compiled on a GPU.


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
only_interpreted = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1 before Triton is imported")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.skipif(INTERPRETED, reason="these tests run under the interpreter already")
def test_kernels_under_the_interpreter():
    """In a process of its own: Triton decides when it is imported."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "interpreted or close"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "11 passed" in done.stdout


def kernels_equal_reference(logits, labels, temperature, dtype):
    """Both kernels against the reference in float64."""
    wanted = reference_statistics(logits.double(), labels, temperature)
    found = module._statistics(logits, labels, temperature)
    # float32: a few roundings of numbers up to the largest logit, and of sums whose terms have one sign.
    bound = 2**-20 * (logits.double().abs().max().item() / temperature + 16)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).abs().max() <= bound
    for of_entropy in (False, True):
        slope = reference_gradient(logits.double(), labels, *wanted[1:], temperature, torch.float64, of_entropy)
        given = module._gradient(logits, labels, *found[1:], temperature, dtype, of_entropy)
        assert given.dtype == dtype
        largest = (1 + wanted[2].max().item()) / temperature
        torch.testing.assert_close(given.double(), slope, rtol=torch.finfo(dtype).eps, atol=4 * bound * largest)


@only_interpreted
@settings(max_examples=25)
@given(
    rows=st.integers(1, 4),
    vocabulary=st.sampled_from([1, 2, 100, 2047, 2048, 2049, 5000]),
    temperature=st.floats(0.1, 10),
    dtypes=st.sampled_from(
        [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32)]
    ),
    offset=st.sampled_from([-1000.0, 0.0, 1000.0]),
    seed=st.integers(0, 999),
)
def test_interpreted_kernels_equal_the_reference(rows, vocabulary, temperature, dtypes, offset, seed):
    """At blocks and around them; logits far from 0 neither overflow nor vanish."""
    torch.manual_seed(seed)
    logits = (4 * torch.randn(rows, vocabulary) + offset).to(dtypes[0])
    labels = torch.randint(vocabulary, (rows,))
    kernels_equal_reference(logits, labels, temperature, dtypes[1])


@only_interpreted
def test_interpreted_kernels_at_the_real_vocabulary():
    torch.manual_seed(0)
    kernels_equal_reference(4 * torch.randn(2, VOCABULARY), torch.tensor([0, VOCABULARY - 1]), 1.0, torch.bfloat16)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_kernels_equal_the_reference(dtype):
    torch.manual_seed(0)
    for rows, vocabulary, temperature in ((1, 1, 1.0), (3, 2049, 0.3), (130, VOCABULARY, 1.0)):
        logits = (4 * torch.randn(rows, vocabulary, device="cuda")).to(dtype)
        labels = torch.randint(vocabulary, (rows,), device="cuda")
        kernels_equal_reference(logits, labels, temperature, torch.bfloat16)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("float32_logits", [True, False])
def test_real_head_on_a_gpu_is_as_close_to_float64_as_its_roundings(float32_logits):
    x, weight, labels = operands(300, VOCABULARY, HIDDEN, torch.bfloat16, device="cuda")
    close_to_float64(x, weight, labels, 0.9, float32_logits=float32_logits)


@pytest.mark.gpu
@gpu
def test_two_runs_on_a_gpu_have_the_same_bits():
    x, weight, labels = operands(1500, VOCABULARY, HIDDEN, torch.bfloat16, device="cuda")
    runs = []
    for _ in range(2):
        leaf = x.detach().requires_grad_()
        scored, entropy = log_probs(leaf, weight, labels, entropy="gradient")
        (scored.sum() + entropy.sum()).backward()
        runs.append((scored, entropy, leaf.grad))
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


@pytest.mark.gpu
@gpu
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


@pytest.mark.gpu
@gpu
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
