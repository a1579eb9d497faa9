"""Two runs compared by what they trained, not by when."""

from pathlib import Path

from rft.record.names import CLOCKS, TRAINING_FILE
from rft.record.readers import read_jsonl

TIMED = ("tokens_per_second_", "tflops_", "model_flops_", "search_latency_", "timing/")


def comparable(run_dir: Path) -> list[dict]:
    """The metrics of each step, without what a clock decides."""
    return [
        {k: v for k, v in step.items() if not k.endswith("_seconds") and not k.startswith(TIMED) and k not in CLOCKS}
        for step in read_jsonl(run_dir / TRAINING_FILE)
    ]


def differing(wanted: dict, found: dict) -> dict:
    """Metrics of a step that are not the same in both: name -> (wanted, found)."""
    pairs = {name: (wanted.get(name), found.get(name)) for name in wanted.keys() | found.keys()}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
