"""Where the milliseconds of a step go: torch.profiler's kernels, by the part of the model that launched them."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from rft.actor import qkv

REGION = "rft region: "
BACKWARD = "autograd::engine::evaluate_function: "
REGIONS = {  # end of a module's name -> region; of nested ones the innermost counts
    r"layers\.\d+": "other",  # or what it recomputes would belong to the gradient that asked for it
    "self_attn": "attention",
    "[qkvo]_proj": "projections",
    r"layernorm|model\.norm": "norms",
    "mlp": "routing",
    "experts": "experts",
    "lm_head": "head",
}
FUNCTIONS = {f"{qkv._RotatedQkv.__name__}{end}": "projections" for end in ("", "Backward")}  # within attention
EXPERTS = {  # words in the name of a kernel, or of an operation on a CPU
    "dequantise": r"dequant",
    "experts GEMM": r"gemm|cutlass|nvjet|(^|[^a-z])(add|b)?mm($|[^a-z])",
}
FAMILIES = (
    *("experts GEMM", "dequantise", "experts, other", "attention", "projections", "head", "norms", "routing"),
    *("other", "idle"),
)


@contextmanager
def region(name: str) -> Iterator[None]:
    """What runs within belongs to this family, and so does its backward pass."""
    with record_function(REGION + name):
        yield


@contextmanager
def marked(model: torch.nn.Module) -> Iterator[None]:
    """The forward passes of a gpt-oss's parts are regions for a while."""
    hooks, open_ones = [], []

    def begin(name: str) -> Callable:
        def before(*_: object) -> None:
            open_ones.append(record_function(REGION + name))
            open_ones[-1].__enter__()

        return before

    def end(*_: object) -> None:
        open_ones.pop().__exit__(None, None, None)

    for name, module in model.named_modules():
        # Adapters lie below the projection that they belong to, a gpt-oss wrapped by PEFT behind longer names.
        home = next((home for end_of, home in REGIONS.items() if re.search(f"({end_of})$", name)), None)
        if home:
            # Always: recomputing a layer ends by an exception once it has made what is needed.
            hooks.append(module.register_forward_hook(end, always_call=True))
            hooks.append(module.register_forward_pre_hook(begin(home)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def profiled(model: torch.nn.Module, step: Callable[[], None]) -> dict[str, float]:
    """Milliseconds by family of one step; it must have run before. The profiler itself adds to `idle`.

    On a CPU the time of each operation takes a kernel's place, and nothing is idle.
    """
    gpu = torch.cuda.is_available()
    with marked(model), profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]) as found:
        step()
        if gpu:
            torch.cuda.synchronize()
    return families(list(found.events()), gpu)


def families(events: list[FunctionEvent], gpu: bool) -> dict[str, float]:
    """Milliseconds by family, in the order of `FAMILIES`, of a profile's events."""
    times = dict.fromkeys(FAMILIES, 0.0)
    operations = [event for event in events if event.device_type == DeviceType.CPU and not event.is_async]
    homes = forward_regions(operations)
    for event in operations:
        # A region's shadow on the GPU is linked to it like a kernel.
        kernels = [(kernel.name, kernel.duration) for kernel in event.kernels if not kernel.name.startswith(REGION)]
        for name, microseconds in kernels if gpu else [(event.name, event.self_cpu_time_total)]:
            times[family(region_of(event, homes), name)] += microseconds / 1000
    if gpu:
        ran = [event for event in events if event.device_type == DeviceType.CUDA and not event.name.startswith(REGION)]
        spans = [(event.time_range.start, event.time_range.end) for event in ran]
        busy, whole = covered(spans)
        times["idle"] = (whole - busy) / 1000
        times["other"] += max(0.0, busy / 1000 - sum(times[name] for name in FAMILIES if name != "idle"))
    return times


def family(region: str | None, kernel: str) -> str:
    """The family of a kernel that a region launched."""
    if region != "experts":
        return region or "other"
    return next((name for name, words in EXPERTS.items() if re.search(words, kernel.lower())), "experts, other")


def forward_regions(operations: list[FunctionEvent]) -> dict[int, str | None]:
    """Region by autograd's sequence number. A node takes the number that the operations since the last one peeked at,
    so the last operation with a number is the node's own."""
    found: dict[int, str | None] = {}
    for event in sorted(operations, key=lambda event: event.time_range.start):
        if event.sequence_nr >= 0 and not any(each.name.startswith(BACKWARD) for each in ancestry(event)):
            found[event.sequence_nr] = region_of(event, {})
    return found


def region_of(event: FunctionEvent, homes: dict[int, str | None]) -> str | None:
    """The innermost region around an operation, or around the forward operation whose gradient it computes."""
    for each in ancestry(event):
        if each.name in FUNCTIONS:
            return FUNCTIONS[each.name]
        if each.name.startswith(REGION):
            return each.name.removeprefix(REGION)
        if each.name.startswith(BACKWARD):
            return homes.get(each.sequence_nr)
    return None


def ancestry(event: FunctionEvent) -> Iterator[FunctionEvent]:
    """An operation and those around it, the innermost first."""
    while event is not None:
        yield event
        event = event.cpu_parent


def covered(spans: list[tuple[float, float]]) -> tuple[float, float]:
    """Length of what some intervals cover together, and from the first begin to the last end."""
    total, reached = 0.0, None
    for begin, end in sorted(spans):
        begin = begin if reached is None else max(begin, reached)
        total += max(0.0, end - begin)
        reached = end if reached is None else max(reached, end)
    return total, (reached - min(spans)[0] if spans else 0.0)
