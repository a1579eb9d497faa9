"""Logits in float32: what the engine does on a CPU so that rollouts can be repeated."""

import torch

from rft.hooks.cpu_linear import SWITCH
from rft.hooks.float32_head import engine_product


def test_logits_of_a_token_do_not_depend_on_the_batch(monkeypatch):
    """With the switch of --full_determinism each is the exact sum, rounded once.

    Whether a row rounds otherwise beside others depends on the CPU's kernels; but a float32 sum of 2,048 products is
    not exact in some of 65,536 outputs on any machine.
    """
    monkeypatch.setenv(SWITCH, "1")
    torch.manual_seed(0)
    x, weight = torch.randn(64, 2048).bfloat16(), torch.randn(1024, 2048).bfloat16()
    together = engine_product(x, weight)
    assert together.dtype == torch.float32
    assert torch.equal(torch.cat([engine_product(row, weight) for row in x.split(1)]), together)
    assert torch.equal((x.double() @ weight.double().T).float(), together)
