"""Which preset of launch/clusters fits this machine: asked by launch/cluster.sh.

    .venv/bin/python -m rft.runs.cluster MODEL PRESET…

prints one of the presets, and on stderr why. A preset is named COUNTxCARD after the machine that it is for. Of those
that ask for no more GPUs, and for none larger, than are here, the one with most GPUs is taken, then the one for the
largest. Exit status 1 and one message where none does.
"""

import os
import re
import sys

from rft.runs.preflight.gpus import read_gpus

GIB = {"h100": 79, "gh200": 95, "h200": 140}  # of a card, in whole GiB as nvidia-smi has it: 79.6, 95.6 and 140.4


def main() -> int:
    model, *presets = sys.argv[1:]
    gpus = read_gpus()
    if not gpus:
        name = min(presets, key=machine)
        print(f"cluster: {name}, the smallest for {model}: no GPU here; {others(name, presets)}", file=sys.stderr)
        print(name)
        return 0
    # CUDA_VISIBLE_DEVICES may name GPUs by UUID, which read_gpus does not look up.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(gpus) if visible is None else min(len(gpus), len(visible.split(",")))
    gib = min(gpu["total"] for gpu in gpus) / 2**30
    here = f"{count} GPU{'s' * (count > 1)} of {gib:.0f} GiB ({gpus[0]['name']})"
    name = nearest(count, gib, presets)
    if name is None:
        found = " ".join(sorted(presets, key=machine))
        print(
            f"error: no preset for this machine and {model}\n  found:  {here}\n  wanted: one of {found}, or larger\n"
            "  repair: such a machine, or CLUSTER=NAME with options for smaller GPUs (docs/running.md)",
            file=sys.stderr,
        )
        return 1
    unused = count - machine(name)[0]
    more = "--actor_num_gpus_per_node and --vllm_num_engines use more"
    used = f", of which it leaves {unused} unused ({more})" if unused else ""
    print(f"cluster: {name}, for {here}{used}; {others(name, presets)}", file=sys.stderr)
    print(name)
    return 0


def others(name: str, presets: list[str]) -> str:
    """How to take another preset."""
    rest = " ".join(sorted((preset for preset in presets if preset != name), key=machine))
    return f"another: CLUSTER={rest.replace(' ', '|')}" if rest else "there is no other"


def nearest(count: int, gib: float, presets: list[str]) -> str | None:
    """The preset for most of these GPUs; None where each asks for more of them, or for larger ones.

    Args:
        count: GPUs that are here.
        gib: memory of the smallest of them.
    """
    fitting = [name for name in presets if machine(name)[0] <= count and machine(name)[1] <= gib]
    return max(fitting, key=machine, default=None)


def machine(preset: str) -> tuple[int, int]:
    """GPUs that a preset is for, and the GiB of each.

    Raises:
        ValueError: a name of another form, or of a card whose memory is not known here.
    """
    match = re.fullmatch(r"([0-9]+)x([a-z0-9]+)", preset)
    if not match or match[2] not in GIB:
        raise ValueError(f"launch/clusters/{preset}.env: wanted COUNTxCARD, a card of {', '.join(GIB)}")
    return int(match[1]), GIB[match[2]]


if __name__ == "__main__":
    sys.exit(main())
