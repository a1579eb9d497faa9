"""What two runs of the same training have in common: the metrics of each step, but for the clock."""

from pathlib import Path

from rft.record.names import CLOCKS, TRAINING_FILE
from rft.record.readers import read_jsonl


def comparable(run_dir: Path) -> list[dict]:
    """The metrics of each step, without what a clock decides."""
    records = read_jsonl(run_dir / TRAINING_FILE)
    rates = ("tokens_per_second_", "tflops_", "model_flops_")
    return [
        {k: v for k, v in record.items() if not k.endswith("_seconds") and not k.startswith(rates) and k not in CLOCKS}
        for record in records
    ]


def assert_equal_metrics(wanted: Path, found: Path, steps: int) -> None:
    """Two runs have logged the same numbers in as many steps."""
    pairs = list(zip(comparable(wanted), comparable(found), strict=True))
    assert [record["global_step"] for _, record in pairs] == list(range(1, steps + 1))
    for expected, record in pairs:
        names = expected.keys() | record.keys()
        differing = {name: (expected.get(name), record.get(name)) for name in names}
        differing = {name: pair for name, pair in differing.items() if pair[0] != pair[1]}
        assert differing == {}, f"step {expected['global_step']}"
