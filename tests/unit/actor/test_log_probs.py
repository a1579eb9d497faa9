"""Log-probabilities with the gradient made in the forward pass, against autograd through a log-softmax."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from log_probs_cases import VOCABULARY, by_autograd, close_to_float64, kernels_equal_reference, operands

from rft.actor import log_probs as module
from rft.actor.log_probs import ENTROPIES, log_probs

ROOT = Path(__file__).resolve().parents[3]


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


@pytest.mark.skipif(INTERPRETED, reason="these tests run under the interpreter already")
def test_kernels_under_the_interpreter():
    """In a process of its own: Triton decides when it is imported."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "interpreted or close"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "11 passed" in done.stdout


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
