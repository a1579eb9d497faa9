"""The first recipe's filters of NuminaMath-1.5, in its order (docs/sources.md), then what keeps the sets honest."""

from collections import Counter

from rft.data.canonical import integer_label
from rft.grading import equal, last_boxed
from rft.problems import is_text

STAGES = {
    "math_word_problem": "question_type is math-word-problem",
    "integer_answer": "the answer is one integer, so that exact match is fair; proof and notfound are dropped",
    "not_amc_aime": "the source is not a contest that we evaluate on",
    "valid": "problem and solution are there, and both validity columns say Yes",
    "unique": "first problem with its canonical text",
    "long_enough": "the problem has 20 characters, the solution any word",
    "decontaminated": "in no evaluation set, neither copied nor nearly",
    "one_answer": "no copy of the problem states another answer",
}
MIN_PROBLEM_CHARS = 20
SENTINELS = ("proof", "notfound")  # in place of an answer
CONTESTS = ("amc", "aime")


def row_fault(row: dict) -> tuple[str, str] | None:
    """(stage, reason) of the first of the stages up to `valid` that rejects a row; None where it passes them."""
    if row["question_type"] != "math-word-problem":
        return "math_word_problem", row["question_type"] or "none stated"
    answer = row["answer"]
    if answer is None or not answer.strip():
        return "integer_answer", "no answer"
    if answer.strip().lower() in SENTINELS:
        return "integer_answer", answer.strip().lower()
    if integer_label(answer) is None:
        return "integer_answer", "not one integer"
    if any(part in CONTESTS for part in (row["source"] or "").lower().replace("-", "_").split("_")):
        return "not_amc_aime", row["source"]
    for column in ("problem", "solution"):
        if row[column] is None or not row[column].strip():
            return "valid", f"no {column}"
        if not is_text(row[column]):
            return "valid", f"{column} is not Unicode text"
        if row[f"{column}_is_valid"] != "Yes":
            return "valid", f"{column}_is_valid is {row[f'{column}_is_valid']}"
    return None


def length_fault(row: dict) -> tuple[str, str] | None:
    """(stage, reason) of the stage `long_enough`."""
    if len(row["problem"].strip()) < MIN_PROBLEM_CHARS:
        return "long_enough", f"problem below {MIN_PROBLEM_CHARS} characters"
    if not any(char.isalnum() for char in row["solution"]):
        return "long_enough", "solution without a word"
    return None


def worked_solution(solution: str, label: str) -> str | None:
    """A solution that ends with `\\boxed{label}`; None where its last box is missing or states another answer.

    Where text follows the box, a closing line repeats the answer.
    """
    answer, end = last_boxed(solution)
    if answer is None or not equal(answer, label):
        return None
    if answer == label and not any(char.isalnum() for char in solution[end:]):
        return solution.strip()
    return f"{solution.strip()}\n\nThe answer is $\\boxed{{{label}}}$."


def stage_table(rows: int, dropped: Counter) -> list[dict]:
    """What each stage left: `stage`, what it `keeps`, `remaining` rows, and `dropped` as counts by reason; in order."""
    table = [{"stage": "start", "keeps": "every row", "remaining": rows, "dropped": {}}]
    for stage, keeps in STAGES.items():
        reasons = {reason: count for (name, reason), count in sorted(dropped.items()) if name == stage}
        rows -= sum(reasons.values())
        table.append({"stage": stage, "keeps": keeps, "remaining": rows, "dropped": reasons})
    return table
