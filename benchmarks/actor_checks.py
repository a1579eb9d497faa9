"""The resident actor's kernels for experts against their references in float64, on a GPU or in Triton's interpreter.

    python -m benchmarks.actor_checks                              a CUDA device
    TRITON_INTERPRET=1 python -m benchmarks.actor_checks           a CPU

Needs torch and triton only. Each check takes a device, returns what it found, and raises AssertionError. Bounds are one
rounding to bf16 and float32's arithmetic: rounding is by 2^-8 of a value at most, by 2^-7 in the interpreter, which
cuts off.
"""

import sys
from types import SimpleNamespace

import torch
from triton import knobs

from rft.actor.combine import combine, combine_backward
from rft.actor.dequantize import dequantize
from rft.actor.device import on_triton
from rft.actor.experts import ResidentExperts, route
from rft.actor.grouped import grouped_mm
from rft.actor.swiglu import LIMIT, swiglu, swiglu_backward
from rft.mxfp4_codec import decode, encode

ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-7 if knobs.runtime.interpret else 2**-8}  # relative
DTYPES = tuple(ROUNDING)
SIZES = {"cpu": ((9, 4, 64, 32),), "cuda": ((33, 4, 96, 64), (1000, 32, 576, 192))}  # tokens, experts, hidden, inner


def near(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype, size: torch.Tensor | float = 0.0) -> None:
    """Within the rounding of `dtype`, of each wanted value and float32's of `size`, the largest part of its sum."""
    bound = ROUNDING[dtype] * wanted.abs() + ROUNDING[torch.float32] * (1 + size)
    excess = ((found.double() - wanted.double()).abs() - bound).max().item()
    assert excess <= 0, f"off by {excess:.3g} more than the bound"


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """NaN, whose bits differ from device to device, counts as one value."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    a_bits, b_bits = (each.where(~each.isnan(), torch.nan).contiguous().view(bits) for each in (a, b))
    return a.dtype == b.dtype and a_bits.equal(b_bits)


def check_every_code_and_scale(device: str) -> str:
    """Bit-equal to the codec, NaN, infinities, subnormals and negative zeros included; and beside the last block."""
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(1, 256, 1, 1)
    scales = torch.arange(256, dtype=torch.uint8).view(1, 256, 1).repeat(1, 1, 16)
    for rows in (256, 3):
        some, their = blocks[:, -rows:].contiguous(), scales[:, -rows:].contiguous()
        room = torch.full((1, rows + 1, 512), 7.0, dtype=torch.bfloat16, device=device)
        out = dequantize(some.to(device), their.to(device), room[:, :rows])
        assert same_bits(out.cpu(), decode(some, their).transpose(1, 2).contiguous())
        assert (room[:, rows:] == 7).all()
    return "256 scales x 256 bytes"


def check_more_than_2_to_the_31_elements(device: str) -> str:
    """120b's largest weights: the last expert is the codec's. On a GPU only: 5.3 GB."""
    if device == "cpu":
        return "left to a GPU"
    generator = torch.Generator(device).manual_seed(0)
    shape = (128, 5760, 90)
    blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8, device=device)
    scales = torch.randint(100, 140, shape, generator=generator, dtype=torch.uint8, device=device)
    out = torch.empty(128, 5760, 2880, dtype=torch.bfloat16, device=device)
    dequantize(blocks, scales, out)
    for expert in (0, 127):
        assert same_bits(out[expert], decode(blocks[[expert]], scales[[expert]])[0].T.contiguous())
    return f"{out.numel()} elements"


def rows_of(device: str, dtype: torch.dtype, inner: int, rows: int = 9, experts: int = 3) -> tuple:
    """First products and biases, some at and beyond the clamps, experts and gradients of rows."""
    generator = torch.Generator().manual_seed(inner)
    h = (4 * torch.randn(rows, 2 * inner, generator=generator)).to(dtype)
    bias = (4 * torch.randn(experts, 2 * inner, generator=generator)).to(dtype)
    bias[:, :8] = 0
    h[:, :8] = torch.tensor([LIMIT, LIMIT, LIMIT, -LIMIT, 80.0, -80.0, -80.0, 80.0])
    chosen = torch.randint(0, experts, (rows,), generator=generator).sort().values.to(torch.uint8)
    grad = torch.randn(rows, inner, generator=generator).to(dtype)
    weights = torch.rand(rows, generator=generator)
    return tuple(each.to(device) for each in (h, bias, chosen, grad, weights))


def check_swiglu(device: str) -> str:
    for dtype in DTYPES:
        for inner in (2880, 1024, 32):
            h, bias, experts, _, _ = rows_of(device, dtype, inner)
            near(swiglu(h, bias, experts), swiglu(h.double(), bias.double(), experts), dtype, size=56)
    return "2880, 1024 and 32 wide"


def check_swiglu_backward(device: str) -> str:
    """Beside h and in its place: the same bits."""
    for dtype in DTYPES:
        for inner in (2880, 1024, 32):
            h, bias, experts, grad, weights = rows_of(device, dtype, inner)
            exact = torch.empty_like(h, dtype=torch.float64)
            wide = (each.double() for each in (grad, weights))
            products = swiglu_backward(h.double(), bias.double(), experts, *wide, exact)
            beside = torch.empty_like(h)
            found = swiglu_backward(h, bias, experts, grad, weights, beside)
            near(beside, exact, dtype, size=100)
            near(found, products, torch.float32, size=56 * inner**0.5)
            again = swiglu_backward(h, bias, experts, grad, weights, h)
            assert same_bits(h, beside)
            assert same_bits(found, again)
    return "2880, 1024 and 32 wide"


def check_combine(device: str) -> str:
    for dtype in DTYPES:
        for tokens, chosen, hidden in ((7, 4, 2880), (3, 1, 32)):
            generator = torch.Generator().manual_seed(hidden)
            rows = torch.randn(tokens * chosen, hidden, generator=generator).to(device, dtype)
            bias = torch.randn(5, hidden, generator=generator).to(device, dtype)
            weights = torch.rand(tokens, chosen, generator=generator).to(device)
            indices = torch.randint(0, 5, (tokens, chosen), generator=generator).to(device)
            routing = route(indices, 5)
            wide = (weights.double(), bias.double(), indices)
            near(
                combine(rows, routing.inverse, weights, bias, indices),
                combine(rows.double(), routing.inverse, *wide),
                dtype,
                size=10,
            )
            near(combine(rows, routing.inverse), combine(rows.double(), routing.inverse), dtype, size=10)
            grad = rows[:tokens].contiguous()
            back, products = combine_backward(grad, routing.order, routing.experts, bias)
            wide, exact = combine_backward(grad.double(), routing.order, routing.experts, bias.double())
            assert back.double().equal(wide)
            near(products, exact, torch.float32, size=hidden)
    return "4 experts a token and one"


def check_grouped_products(device: str) -> str:
    """Experts without rows, one with all, ends that are no multiple of anything."""
    for dtype in DTYPES:
        for ends in ((0, 3, 3, 200), (200, 200, 200, 200), (67, 130, 131, 200)):
            generator = torch.Generator().manual_seed(0)
            x = torch.randn(200, 192, generator=generator).to(device, dtype)
            weight = torch.randn(4, 192, 192, generator=generator).to(device, dtype)
            for transpose in (False, True):
                arguments = torch.tensor(ends, dtype=torch.int32, device=device), transpose
                wanted = grouped_mm(x.double(), weight.double(), *arguments)
                near(grouped_mm(x, weight, *arguments), wanted, dtype, size=192)
    return "ragged and empty experts"


def resident_experts(device: str, dtype: torch.dtype, experts: int, hidden: int, inner: int) -> ResidentExperts:
    generator = torch.Generator().manual_seed(0)
    config = SimpleNamespace(num_local_experts=experts, hidden_size=hidden, intermediate_size=inner)
    module = ResidentExperts(config, device, dtype)
    for name, columns in (("gate_up_proj", hidden), ("down_proj", inner)):
        bias = getattr(module, f"{name}_bias")
        weight = torch.randn(experts, columns, bias.shape[1], generator=generator) / columns**0.5
        packed = encode(weight)
        module._buffers[f"{name}_blocks"], module._buffers[f"{name}_scales"] = (each.to(device) for each in packed)
        bias.data = torch.randn(bias.shape, generator=generator).to(device, dtype)
    return module


def check_experts(device: str) -> str:
    """Output and gradients against float64, at most four roundings off; twice, and with `keep_h`, the same bits."""
    found = 0.0
    for tokens, experts, hidden, inner in SIZES[device]:
        generator = torch.Generator().manual_seed(tokens)
        x = torch.randn(tokens, hidden, generator=generator).to(device, torch.bfloat16)
        scores, indices = torch.randn(tokens, experts, generator=generator).to(device).topk(3)
        weights, grad = scores.softmax(-1), torch.randn(x.shape, generator=generator).to(x)
        indices[: tokens // 2] = torch.tensor([0, 2, 3], device=device)  # some crowded, some empty
        runs = []
        for dtype, keep_h in ((torch.float64, True), (torch.bfloat16, True), (torch.bfloat16, False)):
            module = resident_experts(device, torch.bfloat16, experts, hidden, inner).to(dtype)
            module.keep_h = keep_h
            inputs = x.to(dtype).requires_grad_(), weights.clone().to(torch.promote_types(dtype, torch.float32))
            inputs[1].requires_grad_()
            for _ in range(2):
                out = module(*inputs, indices)
                runs.append((out, *torch.autograd.grad(out, inputs, grad.to(dtype))))
        exact, first = runs[0], runs[2]
        for one, wanted in zip(first, exact, strict=True):
            found = max(found, ((one - wanted).norm() / wanted.norm()).item())
        assert found < 4 * ROUNDING[torch.bfloat16], f"relative error {found:.4f}"
        assert all(same_bits(a, b) for run in runs[3:] for a, b in zip(run, first, strict=True))
    return f"relative error {found:.4f}"


CHECKS = {name.removeprefix("check_"): check for name, check in sorted(globals().items()) if name.startswith("check_")}


def main() -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if not on_triton(torch.empty(1, device=device)):
        print("found no CUDA device, wanted one, or TRITON_INTERPRET=1", file=sys.stderr)
        return 1
    for name, check in CHECKS.items():
        print(f"{name.replace('_', ' ')}: {check(device)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
