"""Experts split over ranks (`--shard_experts`) compute what whole ones do, bit for bit."""

import pytest
import torch
from ranks import run_ranks
from safetensors.torch import load_file

pytestmark = pytest.mark.stack


def test_two_ranks_with_half_of_the_experts_compute_what_one_with_all_does(checkpoint, tmp_path):
    run_ranks("sharded_experts.py", 2, checkpoint, tmp_path / "out")
    for rank in range(2):
        found = load_file(tmp_path / f"out.{rank}")
        assert found.pop("share").item() == 0.5
        whole = {name.removeprefix("whole."): t for name, t in found.items() if name.startswith("whole.")}
        assert len(whole) > 2 * 8
        for name, tensor in whole.items():
            assert torch.equal(found[f"sharded.{name}"], tensor), name
