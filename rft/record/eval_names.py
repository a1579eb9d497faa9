"""Names of evaluations in the loop: `eval_<dataset>_<mode>`, so that every number has its dataset and mode."""

import re
from pathlib import Path

PREFIX = "eval_"
NAME = re.compile(r"eval_(?P<dataset>.+?)_(?P<mode>(?:greedy|sampling|nondet_proxy)_(?:pass|avg)@\d+|pass\d+)")
OOD = re.compile(r"(?:^|[^a-z])ood(?:[^a-z]|$)")


def mode_of(temperature: float, samples: int) -> str:
    """The mode of `samples` samples a problem at a temperature: docs/evaluation.md."""
    if temperature > 0:
        return f"sampling_pass@{samples}"
    return "greedy_pass@1" if samples == 1 else f"nondet_proxy_pass@{samples}"


def dataset_name(path: str) -> str:
    """The name of one entry of OpenRLHF's `--eval_dataset`: its file's without the suffix, or its folder's."""
    place = Path(path.split("@")[0].strip())
    return place.stem if place.suffix in (".json", ".jsonl", ".csv", ".parquet", ".arrow") else place.name


def dataset_names(paths: str) -> list[str]:
    """The names of all entries of `--eval_dataset`, in order. Raises ValueError where two have one name."""
    names = [dataset_name(path) for path in paths.split(",")]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"--eval_dataset: found two sets named {name!r} in {paths}; wanted one name a set, for it labels the "
                "numbers; rename a file"
            )
    return names


def parse(name: str) -> tuple[str, str] | None:
    """(dataset, mode) of a metric's name; the mode is `pass1` or `pass<n>` in older runs. None for other names."""
    found = NAME.fullmatch(name)
    return (found["dataset"], found["mode"]) if found else None


def shares_of_correct(record: dict) -> dict[str, float]:
    """The metrics of one evaluation that are shares of correct samples, which two checkpoints are compared by.

    `…_greedy_pass@1`, `…_avg@n` where there are several samples, and `…_pass1` of older runs.
    """
    return {
        name: value
        for name, value in record.items()
        if value is not None
        and (found := parse(name))
        and (found[1] in ("pass1", "greedy_pass@1", "sampling_pass@1") or "_avg@" in found[1])
    }


def probe_metric(evaluations: list[dict]) -> str | None:
    """The metric that checkpoints are chosen by: the share of correct answers on the OOD probe, greedy if there is one.

    Args:
        evaluations: records of `eval_metrics.jsonl`.

    A dataset is the OOD probe when its name has the word `ood`; without one, the run's first dataset is taken.
    """
    names = list(dict.fromkeys(name for record in evaluations for name in shares_of_correct(record)))

    def worth(name: str) -> tuple[bool, bool]:
        dataset, mode = parse(name)
        return bool(OOD.search(dataset.lower())), mode in ("greedy_pass@1", "pass1")

    return max(names, key=worth, default=None)  # the first of equals


def problems_metric(name: str) -> str:
    """Name of the number of problems behind a metric: `eval_<dataset>_problems`."""
    return f"{PREFIX}{parse(name)[0]}_problems"
