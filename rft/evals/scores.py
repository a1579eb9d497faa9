"""Problems in, graded records and summaries out: the mode and the dataset are part of every number."""

from rft.code.labels import is_code_label
from rft.evals import searches
from rft.grading import equal, grade
from rft.grading.short_answer import answers_of, is_exact, is_search_label, normalized
from rft.stats import majority_at_n, measured, pass_at_k

# Never compared across modes. `n` samples a problem unless told otherwise; k of pass@k is in the name.
MODES = {
    "greedy_pass@1": {"temperature": 0.0, "n": 1},
    "sampling_pass@8": {"temperature": 0.6, "n": 8},
    "nondet_proxy_pass@8": {"temperature": 0.0, "n": 8},
}


def record(problem: dict, sample: dict, channel: str | None) -> dict:
    """One sample of a problem, graded; `channel` is the Harmony channel that the prompt left open (`rft.grading`).

    A program is not graded here: `rft.evals.programs.judged` asks the code server.

    Args:
        problem: with `id` and `label`.
        sample: `prompt` (digest), `index`, `response` (special tokens kept), `tokens`, `finish` (vLLM's reason), and
            of a conversation what `rft.evals.conversations.sample` adds.
    """
    kept = {key: value for key, value in sample.items() if key != "finish"}
    given = {"id": problem["id"], "label": problem["label"], "channel": channel}
    return graded({**given, **kept, "truncated": sample["finish"] == "length"})


def graded(record: dict) -> dict:
    """A record with the verdict of the grader of today; needs `response`, `label` and `channel`.

    One whose label has tests of a program stays as it is. What a conversation answers is in its `answer`: the agent has
    read it from the turn that ended it.
    """
    if is_code_label(record["label"]):
        return record
    if is_search_label(record["label"]):
        return record | _matched(record)
    verdict = grade(record["response"], record["label"], record["channel"])
    return record | {
        "answer": verdict.answer,
        "correct": verdict.correct,
        "correct_lenient": verdict.correct_lenient,
        "has_boxed": verdict.has_boxed,
        "label_valid": verdict.label_valid,
    }


def _matched(record: dict) -> dict[str, bool]:
    try:
        answers = answers_of(record["label"])
    except ValueError:
        return {"correct": False, "label_valid": False}
    return {"correct": is_exact(record["answer"], answers), "label_valid": True}


def by_problem(records: list[dict]) -> dict[str, list[dict]]:
    """The records of each problem id, without problems whose label cannot be graded."""
    groups = {}
    for record in records:
        if record.get("label_valid", True):
            groups.setdefault(record["id"], []).append(record)
    return groups


def summarize(records: list[dict], mode: str) -> dict:
    """Every number of one run on one dataset, each under a name that says its mode.

    Returns:
        The mode's own value under its name with `interval95`; `n` problems; `metrics`, by name, each `value` and
        `interval95`; shares over samples: `truncated`, `no_answer`, `has_boxed` and `lenient` (accuracy of the lenient
        profile), or of programs `causes`, the share of samples with a test that ended so, and `isolation`, the levels
        at which they ran, or `conversations` (`rft.evals.searches.summary`); `mean_tokens`, `tokens`
        quantiles; `ungradable`, problems left out because of their label.
        Programs have the mean share of passed tests among their metrics, and no majority: two right ones are rarely
        the same text.

    Raises:
        ValueError: no problem has a label that can be graded.
    """
    groups = list(by_problem(records).values())
    if not groups:
        raise ValueError(f"{mode}: found no label that can be graded; wanted answers in the field 'label'")
    samples = len(groups[0])
    kept, metrics = [record for group in groups for record in group], _metrics(groups, mode)
    return {
        mode: metrics[mode]["value"],
        "n": len(groups),
        "interval95": metrics[mode]["interval95"],
        "samples_per_problem": samples,
        "metrics": metrics,
        "ungradable": len({r["id"] for r in records}) - len(groups),
        "truncated": _share(kept, "truncated"),
        **_of_the_kind(groups, kept),
        "no_answer": sum(r.get("answer") is None for r in kept) / len(kept),
        "mean_tokens": sum(r["tokens"] for r in kept) / len(kept),
        "tokens": quantiles([r["tokens"] for r in kept]),
    }


def _metrics(groups: list[list[dict]], mode: str) -> dict[str, dict]:
    """The metrics of `summarize`, the mode's own first."""
    samples, family, k = len(groups[0]), mode.split("_pass@")[0], int(mode.split("@")[1])
    counts = [sum(r["correct"] for r in group) for group in groups]
    metrics = {mode: measured([pass_at_k(len(group), c, k) for group, c in zip(groups, counts, strict=True)])}
    programs = _are_programs(groups)
    if programs:
        passed = [sum(r["pass_rate"] for r in group) / samples for group in groups]
        metrics[f"{family}_tests_passed"] = measured(passed)
    if samples > 1:
        metrics[share_of_correct(mode, samples)] = measured([c / samples for c in counts])
    if samples > 1 and not programs:
        metrics[f"{family}_maj@{samples}"] = measured([majority_at_n(votes(group)) for group in groups])
    if mode.startswith("nondet_proxy"):
        same = [float(len({r["response"] for r in group}) == 1) for group in groups]
        metrics[f"{family}_identical@{samples}"] = measured(same)
    return metrics


def _of_the_kind(groups: list[list[dict]], records: list[dict]) -> dict:
    """What `summarize` says of programs, of conversations, or of answers in text alone."""
    if _are_programs(groups):
        return {"causes": causes(records), "isolation": sorted({r["isolation"] for r in records if r["isolation"]})}
    if searches.is_conversation(records[0]):
        return {"conversations": searches.summary(groups)}
    return {"has_boxed": _share(records, "has_boxed"), "lenient": _share(records, "correct_lenient")}


def _are_programs(groups: list[list[dict]]) -> bool:
    return any("pass_rate" in record for record in groups[0])


def votes(group: list[dict]) -> list[tuple[str | None, bool]]:
    """(answer, correct) of each sample of one problem, for `rft.stats.majority_at_n`.

    One vote is not split by its notation: an answer that the strict grader finds equal to an earlier one counts as it,
    so that `1,000`, `1000` and `1{,}000` are one candidate. Short answers of a search are one in their normal form.
    """
    if is_search_label(group[0]["label"]):
        return [(one["answer"] and normalized(one["answer"]), one["correct"]) for one in group]
    candidates, cast = {}, []  # answer as written to the first answer that is equal to it
    for one in group:
        answer = one["answer"]
        if answer is not None and answer not in candidates:
            earlier = dict.fromkeys(candidates.values())
            candidates[answer] = next((other for other in earlier if equal(answer, other)), answer)
        cast.append((candidates.get(answer), one["correct"]))
    return cast


def causes(records: list[dict]) -> dict[str, float]:
    """The share of samples with a test that ended for a cause, by cause, other than that it passed."""
    met = [set(record["causes"]) - {"passed"} for record in records]
    return {cause: sum(cause in one for one in met) / len(met) for cause in sorted(set().union(*met))}


def share_of_correct(mode: str, samples: int) -> str:
    """Name of the share of correct samples in a mode: the mode's own with one sample a problem."""
    return mode if samples == 1 else f"{mode.split('_pass@')[0]}_avg@{samples}"


def quantiles(numbers: list[int]) -> dict[str, int]:
    """Minimum, quartiles, 90th percentile and maximum, each one of the numbers (nearest rank)."""
    ranked, places = sorted(numbers), {"min": 0.0, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9, "max": 1.0}
    return {name: ranked[round(place * (len(ranked) - 1))] for name, place in places.items()}


def _share(records: list[dict], field: str) -> float:
    return sum(bool(record.get(field)) for record in records) / len(records)
