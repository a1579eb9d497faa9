"""The adapter that was best in a run's loop, beside its last one: which it is, and what is left of its lead elsewhere.

    .venv/bin/python -m rft.runs.best RUN_DIR

prints the best adapter's folder; nothing where that is the last adapter or the base. launch/pipeline.sh evaluates it,
to evals/best.json. The highest of many evaluations is too high by chance on the problems that it was chosen on
(`rft.hooks.best_checkpoint`), so `comparison` counts the others. Exit status 2: bad input.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

from rft.data.canonical import content_hash
from rft.evals.results import read_results
from rft.evals.scores import summarize
from rft.options.command import recorded
from rft.problems import problem_text, read_problems, shorten
from rft.record.digest import file_sha256, tree_digest
from rft.runs.report import comparisons

TENSORS = "adapter_model.safetensors"
OPTIMISTIC = "chosen on these problems: optimistic"
UNKNOWN = "the problems that it was chosen on cannot be read: optimistic where they are among these"


class Best(NamedTuple):
    """What best.json says: `value` is that of `metric` after `step` steps; no `adapter`: the base, or a whole model."""

    step: int
    metric: str
    value: float
    adapter: Path | None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    run = parser.parse_args().run_dir
    try:
        best = find_best(run)
        if best and best.adapter and not is_last(run, best):
            print(best.adapter)
    except (ValueError, OSError) as error:
        print(f"best: {error}", file=sys.stderr)
        return 2
    return 0


def find_best(run: Path) -> Best | None:
    """The best evaluation of a run; None where it has none.

    Raises:
        ValueError: best.json cannot be read, or its adapter is not there.
    """
    file = run / "best.json"
    if not file.is_file():
        return None
    found = read_object(file)
    try:
        step, metric, value = int(found["global_step"]), str(found["metric"]), float(found["value"])
        adapter = Path(found["checkpoint"]) if found["checkpoint"] else None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file}: found no best evaluation ({error!r}); wanted what the training writes") from None
    if adapter:
        moved = run / "checkpoints" / adapter.name  # with the run, since
        adapter = moved if moved.is_dir() else adapter
        if not (adapter / TENSORS).is_file():
            raise ValueError(f"{file}: found no {TENSORS} in {adapter}; wanted the adapter of step {step}; restore it")
    return Best(step, metric, value, adapter)


def read_object(file: Path) -> dict:
    """A JSON object. Raises ValueError, naming the file, for anything else."""
    try:
        found = json.loads(file.read_bytes())
    except ValueError as error:
        found = f"no JSON ({error})"
    if not isinstance(found, dict):
        raise ValueError(f"{file}: found {shorten(found)}; wanted an object as the run wrote it; restore it")
    return found


def is_last(run: Path, best: Best) -> bool:
    """Whether the run's last adapter has the best one's tensors."""
    last = run / "adapter" / TENSORS
    return last.is_file() and file_sha256(last) == file_sha256(best.adapter / TENSORS)


def comparison(run: Path) -> dict | None:
    """The best adapter against the last one, on problems that did not choose it; None without evals/best.json.

    Returns:
        `step`, `metric`, `value` as in best.json, and `evaluations`, one a dataset and mode: `dataset`, `mode`, `n`,
        `value` and `interval95` (95%) of the best adapter, `last` (the last one's value on the same problems),
        `sentence` (their paired comparison) and `remark` (which problems these are).

    Raises:
        ValueError: the results cannot be read.
    """
    file, best = run / "evals" / "best.json", find_best(run)
    if best is None or best.adapter is None or not file.is_file():
        return None
    chosen, rows, results = loop_problems(run), [], read_results([file])
    digest = (results[0].get("weights") or {}).get("adapter")
    if digest:
        from rft.evals.models import adapter_digest  # torch: seconds, for those who have measured

        if digest != adapter_digest(best.adapter):
            return None  # of an earlier best: the run was resumed since
    after = read_results([run / "evals" / "after.json"])
    for result in results:
        last = next((one for one in after if same_problems(one, result)), None)
        if last:
            rows.append(row(last, result, *left_over(run, result, chosen)))
    return {"step": best.step, "metric": best.metric, "value": best.value, "evaluations": rows}


def measured(run: Path) -> dict | None:
    """`comparison`, or where it cannot be made a `note` that says why: no reason to leave out the rest of a report."""
    try:
        return comparison(run)
    except (ValueError, OSError) as error:
        return {"note": f"the best adapter in the loop is not compared: {error}"}


def same_problems(one: dict, other: dict) -> bool:
    return (one["dataset"], one["mode"]) == (other["dataset"], other["mode"])


def row(last: dict, best: dict, kept: set[str], remark: str) -> dict:
    """One entry of `comparison`, of the problems `kept`."""
    mode = best["mode"]
    parts = []
    for result in (last, best):
        records = [record for record in result["records"] if record["id"] in kept]
        parts.append(result | summarize(records, mode) | {"records": records})
    (one,) = comparisons.adjusted(comparisons.pairs(parts[:1], parts[1:], "the last adapter", "the best in the loop"))
    about = {"dataset": best["dataset"], "mode": mode, "n": parts[1]["n"], "value": parts[1][mode]}
    about |= {"interval95": parts[1]["interval95"], "last": parts[0][mode]}
    return about | {"sentence": one["sentence"][0].upper() + one["sentence"][1:], "remark": remark}


def left_over(run: Path, result: dict, chosen: tuple[set[str], set[str]] | None) -> tuple[set[str], str]:
    """Ids of the problems of a result that the best adapter was not chosen on, or all where none is left; a remark."""
    ids = {record["id"] for record in result["records"] if record.get("label_valid", True)}
    if chosen is None:
        return ids, UNKNOWN
    names, hashes = chosen
    texts = {} if ids <= names else texts_of(run, result)
    kept = {one for one in ids if one not in names and texts.get(one) not in hashes}
    if not kept:
        return ids, OPTIMISTIC
    return kept, f"on the {len(kept)} of {len(ids)} problems that it was not chosen on"


def loop_problems(run: Path) -> tuple[set[str], set[str]] | None:
    """Ids and content hashes of the problems evaluated in the loop; None where a set is not there, or has changed."""
    try:
        manifest = read_object(run / "run.json")
        names = recorded(manifest.get("command", [])).eval_dataset
        files = [Path(name.strip()) for name in (names or "").split(",") if name.strip()]
        known = manifest.get("inputs", {})
        if not files or any(known.get(str(file), digest) != digest for file in files if (digest := tree_digest(file))):
            return None
        problems = [problem for file in files for problem in read_problems(file)]
    except (ValueError, OSError):
        return None
    return {problem["id"] for problem in problems}, {content_hash(problem_text(problem)) for problem in problems}


def texts_of(run: Path, result: dict) -> dict[str, str]:
    """Content hash by id of the problems of a result, from the file that run.json names; empty where it is gone."""
    for name, digest in read_object(run / "run.json").get("inputs", {}).items():  # which loop_problems has read
        file = Path(name)
        if digest == result.get("problems") and file.is_file() and tree_digest(file) == digest:
            return {problem["id"]: content_hash(problem_text(problem)) for problem in read_problems(file)}
    return {}


def lines(found: object) -> list[str]:
    """What `measured` found, one text a dataset: the value with its interval, the comparison, and the remark."""
    if not isinstance(found, dict):
        return []
    return [
        *([found["note"]] if "note" in found else []),
        *(
            f"best in the loop, step {found['step']}: {one['mode']} on {one['dataset']} {one['value']:.3f} "
            f"({one['interval95'][0]:.3f}-{one['interval95'][1]:.3f}), n = {one['n']}; {one['remark']}. "
            f"{one['sentence']}"
            for one in found.get("evaluations", [])
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
