"""The layout of packed sequences."""

import pytest
import torch

from rft.actor.packed import pack


def test_layout():
    packed = pack([3, 1, 2], "cpu")
    assert packed.lengths == [3, 1, 2] and packed.longest == 3
    assert packed.starts.dtype == torch.int32 and packed.starts.tolist() == [0, 3, 4, 6]
    assert packed.positions.dtype == torch.int64 and packed.positions.tolist() == [0, 1, 2, 0, 0, 1]


@pytest.mark.parametrize("lengths", [[], [3, 0]])
def test_refused(lengths):
    with pytest.raises(ValueError, match="wanted at least one sequence"):
        pack(lengths, "cpu")
