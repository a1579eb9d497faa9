"""Questions with short answers as others publish them, read in one form.

Known are rows of Search-R1 (`question`, `golden_answers`, `reward_model`, `data_source`), of SkyRL and verl, whose
question is in `extra_info`, of FlashRAG (`question`, `golden_answers`), and plain ones (`question`, `answers` or
`answer`). What else such a row has, above all pages of `metadata`, is not read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rft.data.canonical import content_hash
from rft.data.published import raw_rows
from rft.data.tables import parquet_rows
from rft.grading.short_answer import label_of, normalized
from rft.problems import is_text, shorten

TAG = "searchR1_"  # before the data source in SkyRL's and verl's files
COLUMNS = {"id", "question", "golden_answers", "answers", "answer", "data_source", "reward_model", "reward_spec",
           "extra_info"}  # fmt: skip
_ANSWERS = ("golden_answers", "answers", "answer")
_TRUTHS = ("reward_model", "reward_spec")
MAX_CHARACTERS = 20_000  # of a question: what is longer is a text, read from a wrong column


class Question(NamedTuple):
    """A question and the short answers that are right."""

    id: str  # "nq/train_0", or of its text, "nq/3f2a91c07be41d58"
    text: str
    answers: tuple[str, ...]  # of a published row maybe none, where each normalises to nothing ("The")
    datasource: str  # "nq"


def read_questions(path: Path, datasource: str | None = None) -> Iterator[tuple[str, Question]]:
    """(place, question) of each row of a Parquet, JSON or JSON lines file, in its order.

    Args:
        datasource: of rows that do not name one; None takes the file's name.

    Raises:
        ValueError: file, row and field of the first thing that is no question with answers.
    """
    if path.suffix == ".parquet":
        rows = ((f"row {number}", row) for number, row in enumerate(parquet_rows(path, _wanted_columns), 1))
    else:
        rows = raw_rows(path)
    for place, row in rows:
        try:
            yield place, question_of(row, datasource or path.stem)
        except ValueError as error:
            raise ValueError(f"{path}, {place}: {error}") from None


def question_of(row: object, datasource: str) -> Question:
    """The question that a row states; `datasource` is taken where it names none. ValueError says what is wrong."""
    if not isinstance(row, dict):
        raise ValueError(f"found {shorten(row)}, wanted an object with a question and its answers")
    text, source = _question_text(row), _datasource(row, datasource)
    answers = _answers(row)
    identifier = row.get("id")
    if isinstance(identifier, bool) or not isinstance(identifier, str | int | None):
        raise ValueError(f"field 'id' is {shorten(identifier)}, wanted a string or a number")
    if isinstance(identifier, str) and not is_text(identifier):
        raise ValueError(f"field 'id' is {shorten(identifier)}, wanted text")
    name = content_hash(text) if identifier in (None, "") else str(identifier)
    return Question(name if name.startswith(f"{source}/") else f"{source}/{name}", text, answers, source)


def question_row(question: Question, instruction: str) -> dict:
    """The row that trainer and evaluation read: the protocol's instruction, and the question alone behind it.

    So a question's identity, and what is compared with other questions, are the same for every protocol.
    """
    return {
        "input": [{"role": "system", "content": instruction}, {"role": "user", "content": question.text}],
        "label": label_of(question.answers),
        "id": question.id,
        "datasource": question.datasource,
    }


def _wanted_columns(names: list[str]) -> list[str]:
    wanted = [name for name in names if name in COLUMNS]
    _require_fields(set(names))
    return wanted


def _require_fields(names: set[str]) -> None:
    if not names & {"question", "extra_info"} or not names & {*_ANSWERS, *_TRUTHS}:
        raise ValueError(
            f"found fields {sorted(names)}, wanted 'question' and 'golden_answers' (or 'answers'), or those of "
            "Search-R1's, SkyRL's or FlashRAG's files; rename the columns"
        )


def _question_text(row: dict) -> str:
    _require_fields(set(row))
    name, text = "question", row.get("question")
    if text is None and isinstance(row.get("extra_info"), dict):
        name, text = "extra_info.question", row["extra_info"].get("question")
    if not isinstance(text, str) or not text.strip() or not is_text(text) or len(text) > MAX_CHARACTERS:
        raise ValueError(f"field {name!r} is {shorten(text)}, wanted a question of at most {MAX_CHARACTERS} characters")
    return text.strip()


def _datasource(row: dict, default: str) -> str:
    value = row.get("data_source")
    if value is None:
        return default
    if not isinstance(value, str) or not value.removeprefix(TAG).strip() or not is_text(value):
        raise ValueError(f"field 'data_source' is {shorten(value)}, wanted the name of a set, e.g. 'nq'")
    return value.removeprefix(TAG).strip()


def _answers(row: dict) -> tuple[str, ...]:
    """The answers, each once. Where a row states them twice, in columns and as the reward's target, both agree."""
    stated = {name: _texts(name, row[name]) for name in _ANSWERS if row.get(name) is not None}
    for name in _TRUTHS:
        truth = row.get(name)
        truth = truth.get("ground_truth") if isinstance(truth, dict) else None
        target = truth.get("target") if isinstance(truth, dict) else truth
        if target is not None:
            stated[f"{name}.ground_truth"] = _texts(f"{name}.ground_truth", target)
    if not stated:
        raise ValueError(f"found no answers (fields {sorted(row)}), wanted 'golden_answers'; add them")
    (first, answers), *others = stated.items()
    for name, other in others:
        if set(other) != set(answers):
            raise ValueError(
                f"field {first!r} is {shorten(answers)} and field {name!r} is {shorten(other)}, wanted the same "
                "answers; correct one"
            )
    return answers


def _texts(name: str, value: object) -> tuple[str, ...]:
    """Answers without blanks at both ends, each once, without those that normalise to nothing, as no answer does."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(each, str) and is_text(each) for each in listed):
        raise ValueError(f"field {name!r} is {shorten(value)}, wanted a list of short answers")
    return tuple(dict.fromkeys(each.strip() for each in listed if normalized(each)))
