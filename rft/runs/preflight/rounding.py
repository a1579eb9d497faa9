"""What merged bf16 weights keep of an adapter's update: the arithmetic of `--lora_serving merged`, before a run.

The engine serves bf16(W + s·B·A): an update below half the distance of neighbouring bf16 numbers is lost whole. Exact
serving has no such loss (docs/numerics.md). Rule `rounding` judges the same during a run, by what was measured.
"""

import math
import random
import struct
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from rft.runs.lr_schedule import Schedule, summed
from rft.runs.preflight.lines import GO, WARN, Line
from rft.runs.preflight.model import projection_shapes
from rft.shards import read_file

DRAWN = 4096  # weights; the share is then known to about 0.02
TYPICAL = 0.02  # standard deviation of gpt-oss's weights, where the checkpoint cannot be read
HALF = 0.5  # of the update: rule `rounding` warns below it
LATEST = 4  # half of the update must be kept within this part of the run


def check_rounding(args: Namespace, config: dict, schedule: Schedule) -> list[Line]:
    """When half of the update is kept, with every element of B growing by the rate at each update: at the earliest.

    Signs that cancel make it later: with random weights of the 20b shape 24 updates of 5e-7 kept 0.008, where this
    arithmetic says 0.04 (`research_log.md`).
    """
    if args.lora_serving != "merged" or not args.lora_rank or schedule.total < 1 or schedule.target <= 0:
        return []
    weights, origin = read_weights(Path(args.pretrain or ""))
    features = projection_shapes(config)["q_proj"][1]
    # Elements of A are uniform within ±1/√in as PEFT draws them, and r of them are added up with B's signs.
    unit = args.lora_alpha / args.lora_rank * math.sqrt(args.lora_rank / (3 * features))

    def kept(step: int) -> float:
        return kept_share(weights, unit * summed(schedule, step))

    steps = sorted({round(schedule.rollout_steps or 1), schedule.total // LATEST, schedule.total} - {0})
    shares = ", ".join(f"{kept(step):.2g} after {step:,}" for step in steps)
    measured = f"merged weights ({origin}) keep at most {shares} of {schedule.total:,} updates"
    if kept(max(1, schedule.total // LATEST)) >= HALF:
        return [Line("rounding", GO, measured)]
    repair = "--lora_serving exact (the default), which keeps all of it"
    return [Line("rounding", WARN, f"{measured}: the engine samples nearly the base until then", repair)]


def kept_share(weights: Sequence[float], deviation: float) -> float:
    """What bf16 weights keep of a normal update of this standard deviation: Σ change·update / Σ update².

    Args:
        weights: elements of a weight, each a bf16 number.
    """
    numbers, kept, wanted = random.Random(0), 0.0, 0.0
    for weight in weights:
        update = numbers.gauss(0, deviation)
        kept += (as_bf16(weight + update) - weight) * update
        wanted += update * update
    return kept / wanted


def as_bf16(value: float) -> float:
    """The nearest bf16 number, ties to the even one."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits += 0x7FFF + ((bits >> 16) & 1)
    return struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0]


def read_weights(folder: Path) -> tuple[list[float], str]:
    """Elements of a checkpoint's first query projection, and where they come from; typical ones of another dtype.

    Returns:
        `DRAWN` bf16 numbers, and a word for the page.
    """
    for file in sorted(folder.glob("*.safetensors")):
        try:
            tensors = read_file(file)
        except ValueError:
            continue  # the line `model` is about broken files
        names = [name for name in tensors if name.endswith("q_proj.weight") and tensors[name].dtype == "BF16"]
        if not names:
            continue
        with file.open("rb") as stream:
            stream.seek(tensors[min(names)].begin)
            raw = stream.read(2 * DRAWN)
        found = [struct.unpack("<f", b"\0\0" + raw[i : i + 2])[0] for i in range(0, len(raw) - 1, 2)]
        if any(found) and all(map(math.isfinite, found)):
            return found, f"{file.name}, q_proj"
    numbers = random.Random(1)
    return [as_bf16(numbers.gauss(0, TYPICAL)) for _ in range(DRAWN)], f"typical ones of ±{TYPICAL}"
