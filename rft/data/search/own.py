"""Your own questions, or a published file, as rows of the search task in one file."""

from pathlib import Path

from rft.data.canonical import content_hash
from rft.data.published import raw_rows
from rft.data.row_files import json_line, require_apart, write_rows, written_together
from rft.data.search import copies
from rft.data.search.prompts import instruction_of
from rft.data.search.questions import Question, question_row, read_questions
from rft.grading.short_answer import answers_of, is_search_label
from rft.problems import input_fault, problem_text, shorten


def make(questions: Path, evaluated: list[Path], out: Path, protocol: str, force: bool) -> tuple[int, list[dict]]:
    """Write `out`, a row for each question, in their order, without those that an evaluation file asks too.

    Args:
        evaluated: evaluation files of the search task, as this command makes them.

    Returns:
        Number of rows, and what was left out as a copy of which evaluation question.

    Raises:
        ValueError: file, row and cause of the first thing that is no question with an answer; a question or an id
            that comes twice; nothing is left; `out` has another content, and not `force`. Nothing has changed then.
    """
    if out.suffix != ".jsonl":
        raise ValueError(f"found --out {out}, wanted a file .jsonl of rows; pass another --out")
    require_apart([out], [questions, *evaluated])
    index = copies.index_of(question for path in evaluated for question in read_made(path))
    instruction, rows, rejected = instruction_of(protocol), [], []
    for question in read_own(questions):
        if copy := copies.find_copy(question, index):
            rejected.append({"id": question.id, **copy._asdict()})
        else:
            rows.append(question_row(question, instruction))
    if not rows:
        raise ValueError(
            f"{questions}: found every question in the evaluation files, wanted others; correct --eval-set"
        )
    content = "".join(map(json_line, rows)).encode()
    if out.is_file() and out.read_bytes() != content and not force:
        raise ValueError(f"found {out} with another content, wanted a new file; pass another --out, or --force")
    with written_together(out.parent, [out.name]) as paths:
        write_rows(paths[out.name], rows)
    return len(rows), rejected


def read_own(path: Path) -> list[Question]:
    """The questions of a file, in its order; ValueError names the row and cause of the first that is none."""
    found, seen = [], {}
    for place, question in read_questions(path):
        where = f"{path}, {place}"
        if not question.answers:
            raise ValueError(f"{where}: found no answer with a letter or a digit, wanted one; remove the question")
        for what, value in (("question", content_hash(question.text)), ("id", question.id)):
            if (earlier := seen.setdefault((what, value), place)) != place:
                shown = shorten(question.text if what == "question" else value)
                raise ValueError(f"{where}: found the {what} {shown}, as in {earlier}; remove one of both")
        found.append(question)
    return found


def read_made(path: Path) -> list[Question]:
    """The questions of a file that this project has made; ValueError names the row of what is none."""
    found = []
    for place, row in raw_rows(path):
        is_row = (
            isinstance(row, dict) and isinstance(row.get("label"), str) and isinstance(row.get("input"), list | str)
        )
        if not is_row or input_fault(row["input"]) or not is_search_label(row["label"]):
            raise ValueError(
                f"{path}, {place}: found no row of the search task, wanted 'input' and a label with answers; "
                "make the file with data/prepare_search_data.py"
            )
        try:
            answers = answers_of(row["label"])
        except ValueError as error:
            raise ValueError(f"{path}, {place}: {error}") from None
        text = problem_text(row)
        name, source = row.get("id") or content_hash(text), row.get("datasource") or path.stem
        found.append(Question(str(name), text, answers, str(source)))
    return found
