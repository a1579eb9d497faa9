"""MXFP4 bytes to dense weights: a kernel that is bound by memory, and one buffer a shape that all layers share."""

import weakref
from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from triton import knobs

from rft.actor.device import on_triton
from rft.mxfp4_codec import BLOCK, SCALE_NAN, decode

WARPS = 8
_SCALE_NAN = tl.constexpr(SCALE_NAN)
_UPPER = tl.constexpr(0xFFFF0000 - 2**32)  # the upper half of an int32
_ELEMENTS = tl.constexpr(0x81C081C0 - 2**32)  # bits 15 and 8 to 6 of both halves
# A bf16 pair times 2^126 (the exponent field 126 + 127), then times the block's scale. Both products are exact, in
# subnormals too: fma.bf16x2 flushes nothing. The addend -0.0 keeps the sign of a zero.
_SCALE_PAIR = tl.constexpr("""{
    .reg .b32 pair, unit, zero;
    mov.b32 unit, 0x7E807E80;
    mov.b32 zero, 0x80008000;
    fma.rn.bf16x2 pair, $1, unit, zero;
    fma.rn.bf16x2 $0, pair, $2, zero;
}""")


def dequantize(blocks: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Write dense weights into `out` and return it; the bits of `rft.mxfp4_codec.decode(...).transpose(1, 2)`.

    Args:
        blocks: packed elements, uint8 (experts, rows, columns / 32, 16), contiguous.
        scales: their exponents, uint8 (experts, rows, columns / 32), contiguous.
        out: (experts, rows, columns), contiguous; bf16 for the kernel, any float dtype elsewhere.

    Raises:
        TypeError, ValueError: see `decode`; ValueError where `out` has another shape or is not contiguous.
    """
    wanted = (*scales.shape[:-1], scales.shape[-1] * BLOCK)
    if tuple(out.shape) != wanted or not out.is_contiguous():
        raise ValueError(f"dequantize: found an out of shape {tuple(out.shape)}, wanted {wanted}, contiguous")
    if not on_triton(out) or out.dtype != torch.bfloat16:
        return out.copy_(decode(blocks, scales, out.dtype).transpose(1, 2))
    words, pairs = blocks.view(-1).view(torch.int32), out.view(-1).view(torch.int32)
    programs = triton.cdiv(words.numel(), 2 * 32 * WARPS)
    _dequantize[(programs,)](
        words, scales, pairs, words.numel(), THREADS=32 * WARPS, PTX=not knobs.runtime.interpret, num_warps=WARPS
    )
    return out


@triton.jit
def _spread(word, factor, BYTE: tl.constexpr, PTX: tl.constexpr):
    """Two elements, of one byte of a word, as a pair of bf16 in an int32, times the pair of bf16 in `factor`.

    An element is a sign, two bits of exponent, one of mantissa. Put at bit 15 and at bits 8 to 6 they are its value
    times 2^-126 in bf16, exactly: an exponent of zero means a subnormal in both formats. A multiplication here is two
    shifts and an `or`, of bits that do not meet.
    """
    byte = (word >> (8 * BYTE)) & 0xFF
    nibbles = (byte * 0x1001) & 0x000F000F  # one in each half: by 0 and 12
    pair = (nibbles * 0x1040) & _ELEMENTS  # of each half: by 6 and 12
    if PTX:
        pair = tl.inline_asm_elementwise(_SCALE_PAIR, "=r,r,r", [pair, factor], dtype=tl.int32, is_pure=True, pack=1)
    else:  # the same in float32, whose upper half is a bf16
        unit = tl.full(factor.shape, 0x7E800000, tl.int32).to(tl.float32, bitcast=True)
        by = (factor & _UPPER).to(tl.float32, bitcast=True)
        low = ((pair << 16).to(tl.float32, bitcast=True) * unit * by).to(tl.int32, bitcast=True)
        high = ((pair & _UPPER).to(tl.float32, bitcast=True) * unit * by).to(tl.int32, bitcast=True)
        pair = ((low >> 16) & 0xFFFF) | (high & _UPPER)
    return pair


@triton.jit
def _store(pairs, at, word, scale, total, THREADS: tl.constexpr, PTX: tl.constexpr):
    # 2^(scale - 127) in bf16. Bit 6 makes a subnormal of the least scale and, of what would be infinity, NaN.
    factor = (scale << 7) | tl.where((scale == 0) | (scale == _SCALE_NAN), 0x40, 0)
    factor |= factor << 16
    first, second = _spread(word, factor, 0, PTX), _spread(word, factor, 1, PTX)
    third, fourth = _spread(word, factor, 2, PTX), _spread(word, factor, 3, PTX)
    values = tl.interleave(tl.interleave(first, third), tl.interleave(second, fourth))
    to = 4 * at + tl.arange(0, 4 * THREADS)
    tl.store(pairs + to, values, mask=to < 4 * total)


@triton.jit
def _dequantize(words, scales, pairs, total, THREADS: tl.constexpr, PTX: tl.constexpr):
    """One word of 8 elements a thread, so that each thread stores 16 bytes beside its neighbour's; twice a program.

    Both loads come first: a store may alias, so the compiler moves no load above it.
    """
    at = tl.program_id(0).to(tl.int64) * (2 * THREADS)  # 120b: 2.1e9 elements
    here, there = at + tl.arange(0, THREADS), at + THREADS + tl.arange(0, THREADS)
    word = tl.load(words + here, mask=here < total, other=0)
    next_word = tl.load(words + there, mask=there < total, other=0)
    scale = tl.load(scales + here // 4, mask=here < total, other=0).to(tl.int32)
    next_scale = tl.load(scales + there // 4, mask=there < total, other=0).to(tl.int32)
    _store(pairs, at, word, scale, total, THREADS, PTX)
    _store(pairs, at + THREADS, next_word, next_scale, total, THREADS, PTX)


class Scratch:
    """Dense weights of one packed tensor at a time, in one buffer for each shape, dtype and device.

    The buffer remembers whose values it holds, so a layer that asks twice is dequantised once: its backward pass
    behind its own recomputed forward pass. All work is on one stream; nobody keeps the buffer beyond a computation.
    """

    def __init__(self):
        self._buffers: dict[tuple, tuple[torch.Tensor, tuple]] = {}

    def dense(
        self,
        blocks: torch.Tensor,
        scales: torch.Tensor,
        dtype: torch.dtype,
        whole: Callable[[], Sequence[torch.Tensor]] | None = None,
        ranks: int = 1,
    ) -> torch.Tensor:
        """(experts, rows, columns) in `dtype`, overwritten by the next call with another tensor of this shape.

        Where blocks and scales are the share of one of some `ranks`, `whole` gives those of all experts.
        """
        shape = (scales.shape[0] * ranks, scales.shape[1], scales.shape[2] * BLOCK)
        key = (shape, dtype, blocks.device)
        if key not in self._buffers:
            with torch.inference_mode(False):  # a buffer made in that mode could not be written outside it
                self._buffers[key] = torch.empty(shape, dtype=dtype, device=blocks.device), ()
        buffer, held = self._buffers[key]
        if not _same(held, (blocks, scales)):
            self._buffers[key] = buffer, ()  # holds nothing, should the next line raise
            dequantize(*(whole() if whole else (blocks, scales)), buffer)
            self._buffers[key] = buffer, tuple((weakref.ref(each), _content(each)) for each in (blocks, scales))
        return buffer

    def release(self) -> None:
        """Free every buffer; the next call allocates again."""
        self._buffers.clear()


def _content(packed: torch.Tensor) -> tuple[int, int]:
    """What changes when a tensor is written in place or given other memory."""
    return packed._version, packed.data_ptr()


def _same(held: tuple, packed: tuple[torch.Tensor, ...]) -> bool:
    """Whether these very tensors, unchanged, were dequantised last. A weak reference never meets a reused address."""
    return bool(held) and all(
        reference() is each and content == _content(each)
        for (reference, content), each in zip(held, packed, strict=True)
    )


SCRATCH = Scratch()  # of the process: one layer computes at a time
