"""Which samples of a run go into its report: complete groups, spread over the run, within a budget of characters."""

from rft.code.labels import is_code_label, parse
from rft.evals.page import shorten
from rft.grading.short_answer import answers_of, is_search_label
from rft.record.conversation import MODEL, turns_of
from rft.record.samples import EVALUATION, TRAINING, sample_files
from rft.runs.report.data import Run, count, number, read_lines

BUDGET = 600_000  # characters of samples in a page, over all runs
FILE_BUDGET = 25_000  # a file's least share of it; further files are left out, evenly
TEXT = 3_000  # characters of one prompt or response; longer ones lose their middle
TURN = 500  # of one turn that are shown at least, whatever the number of turns
MARKUP = 500  # characters that a sample's heading and tags take
KINDS = {TRAINING: "training", EVALUATION: "evaluation"}


def samples(run: Run, budget: int = BUDGET) -> dict:
    """The samples to read.

    Returns:
        `groups`: dicts of `kind` (training, evaluation), `step`, `prompt`, and `samples`, each with `reward` (None
        where there is none), `right` (yes, no, unknown), `label`, `answer`, `tokens`, `cut`, and `turns`, dicts of
        `by` (model, environment), `text`, `tokens`, `seconds`, of which a response without an environment is one;
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
    """What a reader wants to see of a sample; fields that are missing or of another kind are None.

    `tokens` are those that the policy sampled; `searches` is how often it searched.
    """
    correctness, turns = number(row.get("correctness")), turns_of(row)
    sampled = [number(turn.get("tokens")) for turn in turns if turn["by"] == MODEL]
    return {
        "reward": number(row.get("reward")),
        "right": "unknown" if correctness is None else "yes" if correctness >= 0.5 else "no",
        "turns": shortened(turns, TEXT),
        "label": label_words(row.get("label")),
        "answer": answer_words(row),
        "tokens": None if None in sampled else sum(sampled),
        "searches": number(row.get("searches")),
        "cut": (number(row.get("truncated")) or 0) > 0,
    }


def shortened(turns: list[dict], chars: int) -> list[dict]:
    """Turns whose texts together have about so many characters, of each turn `TURN` at least."""
    room = max(TURN, chars // len(turns)) if len(turns) > 1 else chars
    return [
        {"by": turn["by"], "text": shorten(turn["text"], room)}
        | {name: number(turn.get(name)) for name in ("tokens", "seconds")}
        for turn in turns
    ]


def label_words(label: object) -> object:
    """The label; of a code task its kind and how many tests it has, of a search task the answers that count."""
    if is_search_label(label):
        try:
            return " or ".join(answers_of(label))
        except ValueError:
            return "answers that cannot be read"
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
    return len(group["prompt"]) + sum(
        MARKUP + sum(len(turn["text"]) for turn in one["turns"]) for one in group["samples"]
    )
