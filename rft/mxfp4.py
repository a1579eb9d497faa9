"""MXFP4 encoder and decoder in the layout of gpt-oss checkpoints.

A block is 32 consecutive input features that share one power-of-two scale (E8M0); each element is FP4 E2M1.
Both follow the OCP Microscaling Formats (MX) v1.0 specification, section 6.3: the shared exponent is
`floor(log2(amax)) - 2` (2 is the largest exponent of E2M1), elements are rounded to nearest, ties to even, and saturate at 6.
"""

import torch

BLOCK = 32  # elements that share one scale
MAX_ELEMENT_EXPONENT = 2  # of E2M1: 6 = 1.5 * 2**2
SCALE_BIAS = 127  # E8M0 holds the exponent + 127
SCALE_NAN = 255  # the one E8M0 code that is not a power of two
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of the codes 0..7; bit 3 is the sign
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def _tie_to_even_boundaries() -> torch.Tensor:
    """Upper bounds (inclusive) of the codes 0..6 for `torch.bucketize`.

    Midpoints belong to the even code: below an odd code the midpoint stays with the lower one, below an even code it
    goes up, so there the bound is the next float under the midpoint.
    """
    values = torch.tensor(MAGNITUDES)
    midpoints = (values[:-1] + values[1:]) / 2
    below = torch.nextafter(midpoints, torch.zeros(()))
    return torch.where(torch.arange(7) % 2 == 0, midpoints, below)


def encode(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise expert weights `(E, in, out)`, float32, bfloat16 or float16, with `in` a multiple of 32.

    Returns `blocks` uint8 `(E, out, in/32, 16)`, the element with the even index in the low nibble, and `scales` uint8
    `(E, out, in/32)`, worth `2**(scale - 127)`. A block of zeros gets scale 0. Computed in float32.

    Raises TypeError for another dtype, ValueError for another shape or for values that are not finite.
    """
    if weight.dtype not in FLOATS:
        raise TypeError(f"MXFP4 encode: found dtype {weight.dtype}, wanted float32, bfloat16 or float16")
    if weight.dim() != 3 or weight.shape[1] % BLOCK:
        raise ValueError(
            f"MXFP4 encode: found shape {tuple(weight.shape)}, wanted (experts, in, out), in a multiple of {BLOCK}"
        )
    if not torch.isfinite(weight).all():
        raise ValueError("MXFP4 encode: found values that are not finite, which the format cannot hold")
    experts, inputs, outputs = weight.shape
    x = weight.detach().float().transpose(1, 2).reshape(experts, outputs, inputs // BLOCK, BLOCK).contiguous()
    amax = x.abs().amax(dim=-1)
    # frexp gives amax = m * 2**k with m in [0.5, 1), so floor(log2(amax)) = k - 1, exactly, subnormals included.
    exponent = torch.frexp(amax).exponent - 1 - MAX_ELEMENT_EXPONENT
    scales = torch.where(amax > 0, exponent + SCALE_BIAS, 0).clamp(0, SCALE_NAN - 1)
    scaled = torch.ldexp(x, (SCALE_BIAS - scales).unsqueeze(-1))
    codes = torch.bucketize(scaled.abs(), _tie_to_even_boundaries().to(x.device)).to(torch.uint8)
    codes |= torch.signbit(x).to(torch.uint8) << 3
    blocks = codes[..., 0::2] | codes[..., 1::2] << 4
    return blocks.contiguous(), scales.to(torch.uint8)


def decode(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Dequantise `blocks` uint8 `(E, out, in/32, 16)` and `scales` uint8 `(E, out, in/32)` to `(E, in, out)` in `dtype`.

    Exact in float32 and in bfloat16 (values past the largest finite one become inf). Bit-equal to transformers'
    `convert_moe_packed_tensors` for all scales but 255, which is NaN here, as the specification has it.

    Raises TypeError for other input dtypes, ValueError for other shapes.
    """
    if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
        raise TypeError(f"MXFP4 decode: found dtypes {blocks.dtype} and {scales.dtype}, wanted uint8 and uint8")
    if blocks.dim() != 4 or blocks.shape[-1] != BLOCK // 2 or blocks.shape[:-1] != scales.shape:
        raise ValueError(
            f"MXFP4 decode: found blocks {tuple(blocks.shape)} and scales {tuple(scales.shape)}, "
            f"wanted (experts, out, in/{BLOCK}, {BLOCK // 2}) and (experts, out, in/{BLOCK})"
        )
    magnitudes = torch.tensor(MAGNITUDES, device=blocks.device)
    table = torch.cat([magnitudes, -magnitudes])
    codes = torch.stack([blocks & 0xF, blocks >> 4], dim=-1).flatten(-2)
    # ldexp multiplies by a float32 power of two, and 2**-127 is the smallest exponent that E8M0 has: no double rounding.
    values = torch.ldexp(table[codes.int()], (scales.int() - SCALE_BIAS).unsqueeze(-1))
    values = torch.where((scales == SCALE_NAN).unsqueeze(-1), torch.nan, values)
    experts, outputs = scales.shape[:2]
    return values.to(dtype).reshape(experts, outputs, -1).transpose(1, 2).contiguous()


def fake_quantize(weight: torch.Tensor) -> torch.Tensor:
    """`decode(encode(weight))` `(E, in, out)`, in weight's dtype, whose gradient passes straight through to `weight`.

    The straight-through estimator (Bengio et al. 2013, arXiv:1308.3432) lets training see the weights that will be stored.
    """
    quantised = decode(*encode(weight), dtype=weight.dtype)
    return quantised + (weight - weight.detach())  # adds an exact zero, so the values are the stored ones bit for bit
