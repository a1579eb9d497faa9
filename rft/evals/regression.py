"""The evaluation in the training loop against the post-hoc one of the same checkpoint, problem by problem."""

from pathlib import Path
from typing import NamedTuple

from rft.code.labels import is_code_label
from rft.evals.prompts import digest
from rft.evals.scores import by_problem
from rft.grading import grade, open_channel
from rft.grading.short_answer import is_search_label
from rft.record.eval_names import parse, shares_of_correct
from rft.record.names import EVAL_FILE
from rft.record.readers import metrics_dir, read_jsonl
from rft.record.samples import read_samples


class Difference(NamedTuple):
    """One problem on which the two evaluations do not agree."""

    problem: str  # id where it is known, else the prompt's last line
    cause: str
    training: float | None  # share of correct samples
    posthoc: float | None


def compare_files(training_file: Path, posthoc: dict) -> tuple[int, list[Difference]]:
    """Number of problems in both, and every disagreement with its cause.

    Args:
        training_file: `eval_samples_step<N>.jsonl.gz` of the run, see `rft.hooks.samples`.
        posthoc: one result of `eval/eval_posthoc.py`.

    Problems are paired by their rendered prompt, so that another template or system prompt is seen as such. Equal
    shares are agreement, whatever the wording: greedy samples of two batches may differ in a token.

    Raises:
        ValueError: the file is missing or empty, or no prompt is in both.
    """
    rows = list(read_samples(training_file)) if training_file.is_file() else []
    if not rows:
        raise ValueError(
            f"found no samples in {training_file}; wanted the in-training evaluation's; train with SAMPLES_LOG_DIR "
            "set, or compare only the averages with --averages"
        )
    training = {}
    for row in rows:
        training.setdefault(digest(row["prompt"]), []).append(row)
    groups = {group[0]["prompt"]: group for group in by_problem(posthoc["records"]).values()}
    common = [prompt for prompt in groups if prompt in training]
    if not common:
        found, wanted = rows[0]["prompt"], posthoc["first_prompt"]
        place = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), 0)
        raise ValueError(
            f"no prompt is in both: in training {found[max(0, place - 30) : place + 30]!r}, post hoc "
            f"{wanted[max(0, place - 30) : place + 30]!r}; wanted one dataset, template, system prompt and effort"
        )
    differences = [
        Difference(_name(training[p][0]["prompt"]), "not evaluated post hoc", _share_logged(training[p]), None)
        for p in training
        if p not in groups
    ]
    for prompt, group in groups.items():
        posthoc_share = sum(r["correct"] for r in group) / len(group)
        if prompt not in training:
            differences.append(Difference(group[0]["id"], "not evaluated in training", None, posthoc_share))
        elif (share := _share_logged(training[prompt])) != posthoc_share:
            cause = _cause(training[prompt], group)
            differences.append(Difference(group[0]["id"], cause, share, posthoc_share))
    return len(common), differences


def last_step(run: Path) -> int:
    """The last step that the run evaluated. Raises ValueError where it evaluated none."""
    rows = read_jsonl(metrics_dir(run) / EVAL_FILE)
    if not rows:
        raise ValueError(f"{metrics_dir(run)}: found no evaluation in {EVAL_FILE}; wanted one; train with --eval_steps")
    return rows[-1]["global_step"]


def averages(run: Path, step: int, posthoc: dict) -> list[tuple[str, float, float]]:
    """(metric, in training, post hoc) of every share of correct samples that the run logged at `step`, mode by mode.

    Numbers of another mode than the result's are left out; `eval_*_pass1` of older runs does not say its mode.

    Raises:
        ValueError: the run has no evaluation at that step, or none in the mode of the result.
    """
    evaluated = read_jsonl(metrics_dir(run) / EVAL_FILE)
    rows = [row for row in evaluated if row["global_step"] == step]
    logged = shares_of_correct(rows[-1]) if rows else {}
    if not logged:
        steps = [row["global_step"] for row in evaluated]
        raise ValueError(f"{run}: found no evaluation at step {step}; wanted one of {steps}; pass it as --step")
    family = posthoc["mode"].split("_pass@")[0]
    alike = {k: v for k, v in logged.items() if parse(k)[1] == "pass1" or parse(k)[1].startswith(f"{family}_")}
    if not alike:
        raise ValueError(
            f"{run}, step {step}: found {', '.join(logged)}, wanted the mode of the result, {posthoc['mode']}; "
            "evaluate post hoc in the mode of the training"
        )
    groups = by_problem(posthoc["records"]).values()
    value = sum(sum(r["correct"] for r in group) / len(group) for group in groups) / len(groups)
    return [(name, in_training, value) for name, in_training in alike.items()]


def _share_logged(rows: list[dict]) -> float:
    return sum(row["correctness" if "correctness" in row else "reward"] > 0.5 for row in rows) / len(rows)


def _cause(rows: list[dict], group: list[dict]) -> str:
    """Why the verdicts on one problem differ, in words."""
    if len(rows) != len(group):
        return f"{len(rows)} samples in training, {len(group)} post hoc"
    responses = [row["response"] for row in rows], [record["response"] for record in group]
    if sorted(responses[0]) == sorted(responses[1]):
        return "same responses, graded differently: another grader, reward function or label"
    channel = open_channel(rows[0]["prompt"])
    # The verdict is the code server's, or of what the agent has read.
    other = is_code_label(rows[0]["label"]) or is_search_label(rows[0]["label"])
    now = sum(grade(row["response"], str(row["label"]), channel).correct for row in rows) / len(rows)
    regraded = (
        "" if other or now == _share_logged(rows) else "; today's grader judges training's responses differently too"
    )
    # Of a conversation the tokens that were sampled.
    cut = max(row.get("action_tokens", row["response_tokens"]) for row in rows), max(r["tokens"] for r in group)
    if any(record["truncated"] for record in group) or any(row.get("truncated") for row in rows):
        return f"cut by the length limit (longest: {cut[0]:.0f} tokens in training, {cut[1]} post hoc){regraded}"
    first, second = responses[0][0], responses[1][0]
    place = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(map(len, (first, second)))
    )
    return (
        f"other responses, from character {place}: {first[place:][:24]!r}, post hoc {second[place:][:24]!r}{regraded}"
    )


def _name(prompt: str) -> str:
    return prompt.strip().splitlines()[-1][:60]
