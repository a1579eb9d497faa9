"""Which samples of a run go into its report: complete groups, spread over the run, within a budget of characters."""

from rft.code.labels import is_code_label, parse
from rft.evals.page import shorten
from rft.record.samples import EVALUATION, TRAINING, sample_files
from rft.runs.report.data import Run, count, number, read_lines

BUDGET = 700_000  # characters of samples in a page, over all runs
FILE_BUDGET = 25_000  # a file's least share of it; further files are left out, evenly
TEXT = 3_000  # characters of one prompt or response; longer ones lose their middle
MARKUP = 500  # characters that a sample's heading and tags take
KINDS = {TRAINING: "training", EVALUATION: "evaluation"}


def samples(run: Run, budget: int = BUDGET) -> dict:
    """The samples to read.

    Returns:
        `groups`: dicts of `kind` (training, evaluation), `step`, `prompt`, and `samples`, each with `reward` (None
        where there is none), `right` (yes, no, unknown), `response`, `label`, `answer`, `tokens`, `cut`;
        `shown` and `total`, numbers of samples; `files` and `all_files`.
    """
    files = [(KINDS[kind], step, path) for step, kind, path in sample_files(run.samples_path)]
    kept = spread(files, max(1, budget // FILE_BUDGET))
    groups, total = [], 0
    for kind, step, path in files:
        if (kind, step, path) not in kept:
            total += count(path, run.notes.append)
            continue
        rows = read_lines(path, run.notes.append)
        total += len(rows)
        groups += [{"kind": kind, "step": step} | group for group in within_budget(grouped(rows), budget // len(kept))]
    shown = sum(len(group["samples"]) for group in groups)
    return {"groups": groups, "shown": shown, "total": total, "files": len(kept), "all_files": len(files)}


def spread(items: list, count: int) -> list:
    """At most `count` of the items, evenly, first and last among them (the last alone where count is 1)."""
    if len(items) <= count:
        return items
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)] if count > 1 else items[-1:]


def grouped(rows: list[dict]) -> list[dict]:
    """Samples of one prompt together, in the order of the file."""
    groups = {}
    for row in rows:
        groups.setdefault(str(row.get("prompt", "")), []).append(sample(row))
    return [{"prompt": shorten(prompt, TEXT), "samples": group} for prompt, group in groups.items()]


def sample(row: dict) -> dict:
    """What a reader wants to see of a sample; fields that are missing or of another kind are None."""
    correctness = number(row.get("correctness"))
    return {
        "reward": number(row.get("reward")),
        "right": "unknown" if correctness is None else "yes" if correctness >= 0.5 else "no",
        "response": shorten(str(row.get("response", "")), TEXT),
        "label": label_words(row.get("label")),
        "answer": answer_words(row),
        "tokens": number(row.get("response_tokens")),
        "cut": (number(row.get("truncated")) or 0) > 0,
    }


def label_words(label: object) -> object:
    """The label; of a code task its kind and how many tests it has."""
    if not is_code_label(label):
        return label
    try:
        tests = parse(label)
    except ValueError:
        return "tests that cannot be read"
    return f"{tests.kind}, {len(tests.tests)} tests" + (f" of {tests.entry_point}" if tests.entry_point else "")


def answer_words(row: dict) -> object:
    """The answer; of a code task how its program was found and what each test said, for the response shows it."""
    if not is_code_label(row.get("label")):
        return row.get("extracted_answer")
    return ": ".join(filter(None, (str(row.get("extraction")), str(row.get("test_causes") or ""))))


def within_budget(groups: list[dict], budget: int) -> list[dict]:
    """Groups, spread evenly, that take about `budget` characters; of a single one that is too large, its beginning."""
    sizes = [_size(group) for group in groups]
    kept = spread(groups, max(1, int(budget * len(groups) / max(1, sum(sizes)))))
    while len(kept) > 1 and sum(map(_size, kept)) > budget:
        kept = kept[:-1]
    if len(kept) == 1 and _size(kept[0]) > budget:
        share = max(1, int(len(kept[0]["samples"]) * budget / _size(kept[0])))
        kept = [kept[0] | {"samples": kept[0]["samples"][:share]}]
    return kept


def _size(group: dict) -> int:
    return len(group["prompt"]) + sum(len(one["response"]) + MARKUP for one in group["samples"])
