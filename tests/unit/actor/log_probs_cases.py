"""Operands of `rft.actor.log_probs`, and what its results are compared with, for its tests on a CPU and on a GPU."""

import torch

from rft.actor import log_probs as module
from rft.actor.log_probs import log_probs, reference_gradient, reference_statistics

VOCABULARY, HIDDEN = 201_088, 2_880  # of gpt-oss


def operands(rows: int, vocabulary: int, hidden: int, dtype: torch.dtype, seed: int = 0, device: str = "cpu"):
    """Hidden states, a head whose logits have a deviation of 4, and labels."""
    torch.manual_seed(seed)
    x = torch.randn(rows, hidden, device=device).to(dtype)
    weight = (4 * hidden**-0.5 * torch.randn(vocabulary, hidden, device=device)).to(dtype)
    return x, weight, torch.randint(vocabulary, (rows,), device=device)


def by_autograd(x, weight, labels, temperature, grad, grad_entropy):
    """Log-probabilities, entropies and the gradient of their weighted sum in float64, by autograd."""
    x = x.detach().double().requires_grad_()
    log_p = (x @ weight.double().T / temperature).log_softmax(-1)
    scored, entropy = log_p.gather(1, labels[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    (scored @ grad.double() + entropy @ grad_entropy.double()).backward()
    return scored.detach(), entropy.detach(), x.grad


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


def kernels_equal_reference(logits, labels, temperature, dtype):
    """Both kernels against the reference in float64."""
    wanted = reference_statistics(logits.double(), labels, temperature)
    found = module._statistics(logits, labels, temperature)
    # float32: a few roundings of numbers up to the largest logit, and of sums whose terms have one sign.
    bound = 2**-20 * (logits.double().abs().max().item() / temperature + 16)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).abs().max() <= bound
    log_p = logits.double() / temperature - wanted[1][:, None]
    for of_entropy in (False, True):
        slope = reference_gradient(logits.double(), labels, *wanted[1:], temperature, torch.float64, of_entropy)
        given = module._gradient(logits, labels, *found[1:], temperature, dtype, of_entropy)
        assert given.dtype == dtype
        # log p is off by `bound`, so p by that share of itself; below float32's smallest numbers it is 0.
        terms = 1 + (log_p + wanted[2][:, None]).abs() if of_entropy else 1
        allowed = torch.finfo(dtype).eps * slope.abs() + 4 * bound * log_p.exp() * terms / temperature + 1e-37
        assert ((given - slope).abs() <= allowed).all()
