"""The MXFP4 codec against transformers' dequantisation and against the rounding that the MX specification asks for."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from rft.mxfp4_codec import BLOCK, MAGNITUDES, decode, encode, fake_quantize


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal shapes, dtypes and bits: tells 0.0 from -0.0, which torch.equal does not."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(torch.signbit(a), torch.signbit(b)) and a.equal(b)


def one_block(values: list[float]) -> torch.Tensor:
    return torch.tensor(values).reshape(1, BLOCK, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_decode_equals_transformers_for_every_code_and_scale(dtype):
    blocks = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).repeat(1, 255, 1, 1)
    scales = torch.arange(255, dtype=torch.uint8).reshape(1, 255, 1).repeat(1, 1, 16)
    reference = convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=dtype)
    assert reference.shape == (1, 512, 255)
    assert same_bits(decode(blocks, scales, dtype), reference)


def test_decode_equals_transformers_on_random_experts():
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 64, 4, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(100, 150, (3, 64, 4), generator=generator, dtype=torch.uint8)
    assert same_bits(decode(blocks, scales), convert_moe_packed_tensors(blocks.clone(), scales.clone()))


def test_scale_255_is_not_a_number():
    blocks, scales = torch.zeros(1, 1, 1, 16, dtype=torch.uint8), torch.full((1, 1, 1), 255, dtype=torch.uint8)
    assert decode(blocks, scales).isnan().all()


def test_layout_low_nibble_first_and_transposed():
    weight = torch.zeros(2, BLOCK, 3)
    weight[1, 0, 2], weight[1, 1, 2] = 6.0, -0.5
    blocks, scales = encode(weight)
    assert blocks.shape == (2, 3, 1, 16) and scales.shape == (2, 3, 1)
    assert blocks[1, 2, 0, 0] == 0x97  # 6 is code 7, -0.5 is code 9
    assert scales[1, 2, 0] == 127 and scales[0, 0, 0] == 0
    assert blocks.is_contiguous() and scales.is_contiguous()


# amax 4 gives the shared exponent 0, so the values below are rounded as they stand
ROUNDING = [
    (0.25, 0.0),
    (0.75, 1.0),
    (1.25, 1.0),
    (1.75, 2.0),
    (2.5, 2.0),
    (3.5, 4.0),
    (0.2500001, 0.5),
    (0.7499999, 0.5),
    (1.2500001, 1.5),
    (1.7499999, 1.5),
    (2.5000002, 3.0),
    (3.4999998, 3.0),
]


@pytest.mark.parametrize(("value", "rounded"), ROUNDING)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_ties_go_to_the_even_code(value, rounded, sign):
    decoded = decode(*encode(one_block([4.0, sign * value] + [0.0] * 30)), torch.float32)
    assert decoded[0, 1, 0] == sign * rounded


@pytest.mark.parametrize(("value", "stored"), [(4.999, 4.0), (5.0, 4.0), (5.001, 6.0), (7.999, 6.0), (8.0, 8.0)])
def test_values_between_6_and_8_saturate(value, stored):
    assert decode(*encode(one_block([value] + [0.0] * 31)), torch.float32)[0, 0, 0] == stored


def test_magnitudes_and_negative_zero_are_stored_exactly():
    values = [*MAGNITUDES, *(-m for m in MAGNITUDES)] * 2
    assert same_bits(decode(*encode(one_block(values)), torch.float32), one_block(values))


floats = st.floats(-(2.0**120), 2.0**120, width=32)
blocks_of_floats = st.lists(floats, min_size=2 * BLOCK, max_size=2 * BLOCK)


@settings(max_examples=200)
@given(blocks_of_floats)
def test_encode_is_idempotent_and_bounded(values):
    weight = torch.tensor(values).reshape(1, BLOCK, 2)
    blocks, scales = encode(weight)
    decoded = decode(blocks, scales, torch.float32)
    again = encode(decoded)
    assert same_bits(decode(*again, torch.float32), decoded)
    # Within a block the distance is at most a half of the widest step, 2 * scale, except in saturation: 8 to 6.
    scale = torch.ldexp(torch.ones(()), scales.int() - 127).transpose(1, 2)
    assert ((weight - decoded).abs() <= 2 * scale).all()
    small = weight.abs() <= 5 * scale
    assert ((weight - decoded).abs() <= scale)[small].all()


@settings(max_examples=100)
@given(blocks_of_floats)
def test_fake_quantize_equals_the_stored_values(values):
    weight = torch.tensor(values).reshape(1, BLOCK, 2)
    assert same_bits(fake_quantize(weight), decode(*encode(weight), torch.float32))


@settings(max_examples=100)
@given(st.binary(min_size=32, max_size=32), st.integers(3, 250))
def test_every_block_whose_largest_code_is_normal_survives(packed, scale):
    """What an encoder can have written (a block that reaches 4 or 6) comes back bit for bit."""
    blocks = torch.from_numpy(np.frombuffer(packed, dtype=np.uint8).copy()).reshape(1, 2, 1, 16)
    blocks[..., 0] = blocks[..., 0] & 0xF0 | 0x7
    scales = torch.full((1, 2, 1), scale, dtype=torch.uint8)
    again = encode(decode(blocks, scales, torch.float32))
    assert again[0].equal(blocks) and again[1].equal(scales)


def test_bfloat16_input_is_encoded_as_its_float32_value():
    weight = torch.randn(2, 64, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    for a, b in zip(encode(weight), encode(weight.float()), strict=True):
        assert a.equal(b)


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (torch.zeros(1, 32, 4, dtype=torch.float64), TypeError, "float64.*wanted float32"),
        (torch.zeros(32, 4), ValueError, r"shape \(32, 4\).*wanted \(experts, in, out\)"),
        (torch.zeros(1, 33, 4), ValueError, r"shape \(1, 33, 4\).*multiple of 32"),
        (torch.full((1, 32, 4), torch.inf), ValueError, "not finite"),
        (torch.full((1, 32, 4), torch.nan), ValueError, "not finite"),
    ],
)
def test_encode_refuses(weight, error, message):
    with pytest.raises(error, match=message):
        encode(weight)


@pytest.mark.parametrize(
    ("blocks", "scales", "error"),
    [
        (torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 1, dtype=torch.uint8), TypeError),
        (torch.zeros(1, 2, 1, 16, dtype=torch.uint8), torch.zeros(1, 2, 1), TypeError),
        (torch.zeros(1, 2, 1, 8, dtype=torch.uint8), torch.zeros(1, 2, 1, dtype=torch.uint8), ValueError),
        (torch.zeros(1, 2, 1, 16, dtype=torch.uint8), torch.zeros(1, 2, 2, dtype=torch.uint8), ValueError),
        (torch.zeros(2, 1, 16, dtype=torch.uint8), torch.zeros(2, 1, dtype=torch.uint8), ValueError),
    ],
)
def test_decode_refuses(blocks, scales, error):
    with pytest.raises(error, match="MXFP4 decode: found"):
        decode(blocks, scales)
