"""Result files of earlier evaluations: read, graded again, put together."""

import json
from pathlib import Path

from rft.code.labels import is_code_label
from rft.evals.scores import graded, summarize
from rft.grading.short_answer import is_search_label
from rft.problems import read_problems
from rft.record.digest import tree_digest

# What tables and comparisons read of a result, and a page of a record.
NEEDED = {"model", "kind", "dataset", "mode", "n", "interval95", "samples_per_problem", "metrics", "records"}
NEEDED |= {"truncated", "mean_tokens", "ungradable"}
RECORD = {"id", "label", "response", "tokens", "truncated", "correct"}


def read_results(files: list[Path]) -> list[dict]:
    """The results in one or more files of `eval_posthoc.py --output`.

    Raises:
        ValueError: a file is not there, not JSON or not a list of results; or two results have one name, dataset and
            mode.
    """
    results, seen = [], {}
    for file in files:
        if not file.is_file():
            raise ValueError(
                f"found no file {file}; wanted results; write them with .venv/bin/python eval/eval_posthoc.py --output"
            )
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(
                f"{file}: not JSON ({error}); write it again with .venv/bin/python eval/eval_posthoc.py --output"
            ) from None
        if fault := _fault(content):
            raise ValueError(f"{file}: {fault}; write it again with .venv/bin/python eval/eval_posthoc.py --output")
        for result in content:
            key = (result["model"], result["dataset"], result["mode"])
            if key in seen:
                raise ValueError(f"{file} and {seen[key]}: found {' / '.join(key)} in both; wanted it once; rename one")
            seen[key] = file
        results += content
    return results


def _fault(content: object) -> str | None:
    """What is wrong with a file of results, or None."""
    if not isinstance(content, list) or not content:
        return f"found {'an empty list' if content == [] else type(content).__name__}, wanted a list of results"
    for place, result in enumerate(content, 1):
        if not isinstance(result, dict):
            return f"result {place} is {type(result).__name__}, wanted an object"
        if missing := sorted((NEEDED | {str(result.get("mode"))}) - result.keys()):
            return f"result {place} has no {', '.join(missing)}, wanted a complete result"
        if not result["records"] or not all(isinstance(r, dict) and r.keys() >= RECORD for r in result["records"]):
            return f"result {place}: wanted records with {', '.join(sorted(RECORD))}"
    return None


def relabel(results: list[dict], files: list[Path]) -> None:
    """Give every record, in place, the label that its problem has in the dataset of today, by problem id.

    A file is for the results whose dataset has its name; the other results keep their labels.

    Raises:
        ValueError: a file cannot be read, no result is on it, or it lacks a problem that was evaluated.
    """
    labels = {file.name: {problem["id"]: problem["label"] for problem in read_problems(file)} for file in files}
    if len(labels) < len(files):
        raise ValueError("found two datasets with one file name; numbers are labelled by it; rename one")
    for name in labels:
        if not any(result["dataset"] == name for result in results):
            raise ValueError(
                f"found no result on {name}; wanted one of {sorted({result['dataset'] for result in results})}; "
                "a dataset is known by its file name"
            )
    digests = {file.name: tree_digest(file) for file in files}
    for result in results:
        known = labels.get(result["dataset"])
        if known is None:
            continue
        unknown = sorted({record["id"] for record in result["records"]} - known.keys())
        if unknown:
            raise ValueError(
                f"{result['dataset']}: found no problem {', '.join(unknown[:5])}{' …' * (len(unknown) > 5)}, of which "
                f"{result['model']} has answers; wanted each of its {len(result['records'])} samples' problems; pass "
                "the dataset that was evaluated, with its labels corrected"
            )
        result["records"] = [record | {"label": known[record["id"]]} for record in result["records"]]
        result["problems"] = digests[result["dataset"]]


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
        if any(is_search_label(record["label"]) and "answer" not in record for record in result["records"]):
            raise ValueError(
                f"{result['model']} on {result['dataset']}: found labels of questions that are searched for, and "
                "records without answer; wanted conversations; evaluate it again with eval/eval_posthoc.py and "
                "--agent search"
            )
        if any(not {"channel", "index"} <= record.keys() for record in result["records"]):
            raise ValueError(
                f"{result['model']} on {result['dataset']}: found records without channel and index, which "
                "grading needs; evaluate it again with eval/eval_posthoc.py"
            )
        if any(is_code_label(record["label"]) for record in result["records"]):
            raise ValueError(
                f"{result['model']} on {result['dataset']}: found tests of programs as labels; wanted mathematics; run "
                "eval/eval_posthoc.py again with the same --cache: it draws nothing and judges every program"
            )
        records = [graded(record) for record in result["records"]]
        for before, after in zip(result["records"], records, strict=True):
            if before["correct"] != after["correct"]:
                place = {key: result[key] for key in ("model", "dataset")}
                place |= {key: after[key] for key in ("id", "index", "answer", "label")}
                changed.append(place | {"before": before["correct"], "after": after["correct"]})
        result |= summarize(records, result["mode"]) | {"records": records, "grader": grader}
    return changed
