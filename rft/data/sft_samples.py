"""Conversations to imitate from a model's own right answers: rejection sampling, of what an evaluation has drawn."""

import json
from collections import Counter, defaultdict
from pathlib import Path

from rft import __version__
from rft.agents.harmony import CHANNEL, RETURNED, messages
from rft.data import decontaminate
from rft.data.canonical import canonical_text, canonical_words_text, hash_text, priority
from rft.data.curriculum import read_dataset
from rft.data.published import read_published
from rft.data.row_files import input_identity, require_apart, write_rows, written_together
from rft.evals.results import read_results
from rft.hooks.sft_rows import conversations
from rft.problems import problem_text

CHOICES = ("shortest", "random")
# Why a sample is left out, in the order in which it is asked.
WRONG, CUT, BARE, UNBOXED = "wrong", "cut at the limit", "not analysis, then a final message", "no box in the answer"


def make_rows(
    evaluation: Path, dataset: Path, eval_files: list[Path], choice: str, per_problem: int, seed: int, out: Path
) -> dict:
    """Write `out`, rows with the prompt in `input` and the sampled turn in `output`, and `<out>.manifest.json`.

    Args:
        evaluation: of `eval_posthoc.py --output`, with one result, of single responses.
        dataset: the problems that were evaluated, with their prompts.
        eval_files: problem sets of which no copy is written (`rft.data.decontaminate`).
        choice: which right samples of a problem: the `shortest` ones, or `random` ones.
        per_problem: samples of a problem at most; equal texts count once.
        seed: of `random`.

    Returns:
        The manifest.

    Raises:
        ValueError: bad input, or no sample is left. Nothing has been written then.
    """
    if choice not in CHOICES or per_problem < 1:
        raise ValueError(f"found {choice} and {per_problem} a problem, wanted {' or '.join(CHOICES)} and at least 1")
    names = [out.name, f"{out.name}.manifest.json"]
    require_apart([out.with_name(name) for name in names], [evaluation, dataset, *eval_files])
    problems, result = read_dataset(dataset), read_result(evaluation)
    evaluations = {path: read_published(path) for path in eval_files}
    index = decontaminate.build_index(p for listed in evaluations.values() for p in listed)
    samples = defaultdict(list)
    for record in result["records"]:
        samples[record["id"], record["label"]].append(record)
    if strange := samples.keys() - {(row["id"], row["label"]) for row in problems}:
        raise ValueError(
            f"{dataset}: found no problem {min(strange)[0]!r} with the label that was evaluated in {evaluation} (nor "
            f"{len(strange) - 1} others); wanted the dataset of that evaluation; pass it with --dataset"
        )
    rows, dropped, rejected = [], Counter(), []
    for problem in problems:
        found = samples[problem["id"], problem["label"]]
        text = canonical_words_text(problem_text(problem))
        key = hash_text(canonical_text(text))
        match = decontaminate.find_match(problem_text(problem), text, key, problem["label"], index) if found else None
        if match:
            rejected.append({"id": problem["id"], **match._asdict()})
            dropped[match.reason] += len(found)
            continue
        right = usable(problem, found, dropped)
        for number, record in enumerate(chosen(right, choice, per_problem, seed), 1):
            name = f"{problem['id']}#{number}" if number > 1 else problem["id"]
            rows.append(problem | {"id": name, "output": [turn_of(record)]})
    if not rows:
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.most_common())
        raise ValueError(
            f"{evaluation}: found no sample to learn from ({reasons}), wanted one; evaluate other problems"
        )
    with written_together(out.parent, names) as paths:
        manifest = {
            "settings": {"choice": choice, "per_problem": per_problem, "seed": seed},
            "versions": {"rft": __version__},
            "evaluation": input_identity(evaluation) | {"model": result["model"], "mode": result["mode"]},
            "dataset": input_identity(dataset) | {"problems": len(problems)},
            "samples": len(result["records"]),
            "dropped": dict(dropped),
            "decontamination": {
                "settings": decontaminate.settings(),
                "eval_sets": [{**input_identity(path), "problems": len(ps)} for path, ps in evaluations.items()],
                "rejected": rejected,
            },
            "files": {out.name: write_rows(paths[out.name], rows)},
        }
        paths[names[1]].write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def read_result(evaluation: Path) -> dict:
    """The one result of an evaluation's file, of single responses.

    Raises:
        ValueError: there are several, or they are conversations of an agent.
    """
    results = read_results([evaluation])
    if len(results) != 1:
        found = ", ".join(f"{each['model']} on {each['dataset']}, {each['mode']}" for each in results)
        raise ValueError(f"{evaluation}: found {len(results)} results ({found}), wanted one; evaluate one model alone")
    if any("turns" in record for record in results[0]["records"]):
        raise ValueError(f"{evaluation}: found conversations of an agent, wanted single responses; leave --agent out")
    return results[0]


def usable(problem: dict, records: list[dict], dropped: Counter) -> list[dict]:
    """The right, whole samples of a problem that box their answer; why the others are left out goes to `dropped`."""
    kept = []
    for record in records:
        fault = fault_of(problem, record)
        if fault:
            dropped[fault] += 1
        else:
            kept.append(record)
    return kept


def fault_of(problem: dict, record: dict) -> str | None:
    """Why a sample is nothing to learn from, or None. Programs, which have no box, are asked for none."""
    if not record["correct"]:
        return WRONG
    if record["truncated"]:
        return CUT
    if not record.get("has_boxed", True):
        return UNBOXED
    turn = turn_of(record)
    try:
        conversations(problem | {"output": turn})
    except (ValueError, TypeError):
        return BARE
    return None


def turn_of(record: dict) -> dict | None:
    """The message of a response that is one analysis and then one final message; None of any other.

    Its text begins behind the prompt's `<|start|>assistant`, special tokens kept.
    """
    found = messages(record["response"])
    channels = [match[1] if (match := CHANNEL.search(message.header)) else "" for message in found]
    if channels != ["analysis", "final"] or found[0].end != "<|end|>" or found[1].end not in (RETURNED, ""):
        return None
    return {"role": "assistant", "thinking": found[0].content, "content": found[1].content}


def chosen(records: list[dict], choice: str, count: int, seed: int) -> list[dict]:
    """`count` of a problem's samples at most, of equal texts one: the shortest in tokens, or random ones by seed."""
    unique = {}
    for record in records:
        unique.setdefault(record["response"], record)

    def rank(record: dict) -> tuple:
        drawn = priority(seed, f"{record['id']}:{record['response']}")
        return (record["tokens"] if choice == "shortest" else 0, drawn)

    return sorted(unique.values(), key=rank)[:count]
