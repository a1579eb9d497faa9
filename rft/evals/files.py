"""Result files of earlier evaluations: read, graded again, put together."""

import json
from pathlib import Path

from rft.evaluation import graded, summarize

NEEDED = {"model", "dataset", "mode", "records", "metrics"}


def read_results(files: list[Path]) -> list[dict]:
    """The results in one or more files of `eval_posthoc.py --output`.

    Raises:
        ValueError: a file is not there, not JSON or not a list of results; or two results have one name, dataset and
            mode.
    """
    results, seen = [], {}
    for file in files:
        if not file.is_file():
            raise ValueError(f"found no file {file}; wanted results; write them with eval/eval_posthoc.py --output")
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{file}: not JSON ({error}); write it again with eval/eval_posthoc.py --output") from None
        if not isinstance(content, list) or not all(isinstance(r, dict) and r.keys() >= NEEDED for r in content):
            raise ValueError(f"{file}: wanted a list of results with {', '.join(sorted(NEEDED))}; write it again")
        for result in content:
            key = (result["model"], result["dataset"], result["mode"])
            if key in seen:
                raise ValueError(f"{file} and {seen[key]}: found {' / '.join(key)} in both; wanted it once; rename one")
            seen[key] = file
        results += content
    return results


def regrade(results: list[dict], grader: str) -> list[dict]:
    """Grade every record again, in place, with the grader of today; nothing is sampled.

    Args:
        results: see `read_results`.
        grader: digest of that grader.

    Returns:
        What changed: one dict a sample with `model`, `dataset`, `id`, `index`, `before`, `after`, `answer`, `label`.
    """
    changed = []
    for result in results:
        records = [graded(record) for record in result["records"]]
        for before, after in zip(result["records"], records, strict=True):
            if before["correct"] != after["correct"]:
                place = {key: result[key] for key in ("model", "dataset")}
                place |= {key: after[key] for key in ("id", "index", "answer", "label")}
                changed.append(place | {"before": before["correct"], "after": after["correct"]})
        result |= summarize(records, result["mode"]) | {"records": records, "grader": grader}
    return changed
