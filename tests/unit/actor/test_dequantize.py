"""Dequantised weights against the codec, and the buffer that remembers whose values it holds."""

import pytest
import torch

from rft.actor.dequantize import Scratch, dequantize
from rft.mxfp4_codec import decode


def packed(experts: int = 3, rows: int = 4, blocks: int = 2, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks and scales of random experts."""
    generator = torch.Generator().manual_seed(seed)
    shape = (experts, rows, blocks)
    return (
        torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8),
        torch.randint(118, 124, shape, generator=generator, dtype=torch.uint8),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_it_is_the_codec_in_rows_of_outputs(dtype):
    blocks, scales = packed()
    out = torch.empty(3, 4, 64, dtype=dtype)
    assert dequantize(blocks, scales, out) is out
    assert out.equal(decode(blocks, scales, dtype).transpose(1, 2))


@pytest.mark.parametrize("out", [torch.empty(3, 4, 32), torch.empty(3, 64, 4).transpose(1, 2)])
def test_an_output_of_another_layout_is_refused(out):
    with pytest.raises(ValueError, match="wanted \\(3, 4, 64\\), contiguous"):
        dequantize(*packed(), out)


def values(blocks, scales):
    return decode(blocks, scales, torch.float32).transpose(1, 2)


def test_two_layers_share_one_buffer_and_get_their_own_values():
    scratch, first, second = Scratch(), packed(seed=1), packed(seed=2)
    a = scratch.dense(*first, torch.float32)
    assert a.equal(values(*first))
    b = scratch.dense(*second, torch.float32)
    assert b.data_ptr() == a.data_ptr()
    assert b.equal(values(*second))
    assert scratch.dense(*first, torch.float32).equal(values(*first))


def test_who_asks_twice_is_dequantised_once():
    scratch, layer = Scratch(), packed()
    scratch.dense(*layer, torch.float32).fill_(7)  # a mark that a second dequantisation would remove
    assert (scratch.dense(*layer, torch.float32) == 7).all()
    assert scratch.dense(*layer, torch.float64).equal(values(*layer).double())


def test_changed_bytes_are_dequantised_again():
    scratch, (blocks, scales) = Scratch(), packed()
    scratch.dense(blocks, scales, torch.float32)
    scales += 1
    assert scratch.dense(blocks, scales, torch.float32).equal(values(blocks, scales))
    blocks.data = packed(seed=5)[0]
    assert scratch.dense(blocks, scales, torch.float32).equal(values(blocks, scales))


def test_a_tensor_in_the_place_of_a_freed_one_is_dequantised():
    scratch, (blocks, scales) = Scratch(), packed()
    memory = blocks.numpy()  # of one place, for one tensor after another
    blocks = torch.from_numpy(memory)
    scratch.dense(blocks, scales, torch.float32)
    address = blocks.data_ptr()
    del blocks
    memory[:] = packed(seed=9)[0].numpy()
    again = torch.from_numpy(memory)
    assert again.data_ptr() == address and again._version == 0
    assert scratch.dense(again, scales, torch.float32).equal(values(again, scales))


def test_a_failed_dequantisation_leaves_nothing_behind():
    scratch, (blocks, scales) = Scratch(), packed()
    scratch.dense(blocks, scales, torch.float32)
    with pytest.raises(TypeError, match="wanted uint8"):
        scratch.dense(blocks.int(), scales, torch.float32)
    assert scratch.dense(blocks, scales, torch.float32).equal(values(blocks, scales))


def test_a_buffer_made_in_inference_mode_serves_outside_of_it():
    scratch, layer, other = Scratch(), packed(), packed(seed=3)
    with torch.inference_mode():
        scratch.dense(*other, torch.float32)
    assert scratch.dense(*layer, torch.float32).equal(values(*layer))
