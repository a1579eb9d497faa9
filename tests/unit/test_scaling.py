"""Steps on more nodes, computed: the constants add up to what was measured, and the page is what the command prints."""

import sys
from pathlib import Path

import pytest

from rft.runs import scaling

PAGE = Path(__file__).resolve().parents[2] / "docs/scaling.md"


def test_on_one_gpu_it_is_the_measured_step():
    assert scaling.step(1, 64, 1024, gpus=1).total == pytest.approx(17.3, rel=0.02)


def test_a_batch_that_does_not_grow_is_bound_by_its_longest_sample():
    costs = [scaling.step(nodes, 512, 1024) for nodes in scaling.NODES]
    assert costs[-1].rollout == costs[1].rollout == 1024 / scaling.SAMPLE_TOKENS < costs[0].rollout
    assert costs[-1].sync > costs[0].sync and costs[-1].actor < costs[0].actor
    assert scaling.step(1, 9, 1024).rollout == scaling.step(1, 16, 1024).rollout, "the fullest GPU counts"


def test_the_page_has_what_the_command_prints(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["rft.runs.scaling"])
    scaling.main()
    assert capsys.readouterr().out in PAGE.read_text()
