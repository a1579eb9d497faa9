"""MXFP4 encoder and decoder in the layout of gpt-oss checkpoints.

A block is 32 consecutive input features that share one power-of-two scale (E8M0); each element is FP4 E2M1.
Both follow the OCP Microscaling Formats (MX) v1.0 specification, section 6.3: the shared exponent is
`floor(log2(amax)) - 2` (2 is the largest exponent of E2M1), elements are rounded to nearest, ties to even, and
saturate at 6.
"""

import torch

BLOCK = 32  # elements that share one scale
MAX_ELEMENT_EXPONENT = 2  # of E2M1: 6 = 1.5 * 2**2
SCALE_BIAS = 127  # E8M0 holds the exponent + 127
SCALE_NAN = 255  # the one E8M0 code that is not a power of two
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of the codes 0..7; bit 3 is the sign
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def _shared_exponent(amax: torch.Tensor) -> torch.Tensor:
    """E8M0 exponent, int32, of blocks whose largest magnitude is `amax`; a block of zeros gets the smallest, -127."""
    # frexp gives amax = m * 2**k with m in [0.5, 1), so floor(log2(amax)) = k - 1, exactly, subnormals included.
    exponent = torch.frexp(amax).exponent - 1 - MAX_ELEMENT_EXPONENT
    return torch.where(amax > 0, exponent, -SCALE_BIAS).clamp(-SCALE_BIAS, SCALE_NAN - 1 - SCALE_BIAS)


def _round_to_e2m1(magnitude: torch.Tensor) -> torch.Tensor:
    """Nearest of `MAGNITUDES`, ties to even; what is larger than 6 becomes 6."""
    # The grid is 0.5 wide below 2, 1 wide below 4, then 2 wide. torch.round sends halves to the even multiple, which is
    # the even code, because each binade starts at an even one.
    fine, middle, coarse = torch.round(magnitude * 2) / 2, torch.round(magnitude), torch.round(magnitude / 2) * 2
    return torch.where(magnitude < 2, fine, torch.where(magnitude < 4, middle, coarse)).clamp(max=MAGNITUDES[-1])


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
    x = weight.detach().float().transpose(1, 2).reshape(experts, outputs, inputs // BLOCK, BLOCK)
    exponent = _shared_exponent(x.abs().amax(dim=-1))
    rounded = _round_to_e2m1(torch.ldexp(x.abs(), -exponent.unsqueeze(-1)))
    code_of_half_steps = torch.tensor([0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7], dtype=torch.uint8, device=x.device)
    codes = code_of_half_steps[(rounded * 2).int()]
    codes |= torch.signbit(x).to(torch.uint8) << 3
    blocks = (codes[..., 0::2] | codes[..., 1::2] << 4).contiguous()
    return blocks, (exponent + SCALE_BIAS).to(torch.uint8).contiguous()


def decode(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Dequantise `blocks` uint8 `(E, out, in/32, 16)` and `scales` uint8 `(E, out, in/32)` to `dtype` `(E, in, out)`.

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
    # ldexp multiplies by a float32 power of two, 2**-127 at the least: exact, so only the cast to `dtype` can round.
    values = torch.ldexp(table[codes.int()], (scales.int() - SCALE_BIAS).unsqueeze(-1))
    values = torch.where((scales == SCALE_NAN).unsqueeze(-1), torch.nan, values)
    experts, outputs = scales.shape[:2]
    return values.to(dtype).reshape(experts, outputs, -1).transpose(1, 2).contiguous()


def fake_quantize(weight: torch.Tensor) -> torch.Tensor:
    """`decode(*encode(weight), torch.float32)` for a float32 weight `(E, in, out)`, without packing: the stored values.

    For training with the weights as they will be stored; the result has no gradient. Takes the weight as good: shape,
    dtype and finiteness are `encode`'s to check.
    """
    experts, inputs, outputs = weight.shape
    x = weight.detach().view(experts, inputs // BLOCK, BLOCK, outputs)
    exponent = _shared_exponent(x.abs().amax(dim=2, keepdim=True))
    rounded = _round_to_e2m1(torch.ldexp(x.abs(), -exponent))
    return torch.ldexp(torch.copysign(rounded, x), exponent).view_as(weight)
