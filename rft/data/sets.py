"""The published sets of the math task: where the hub has them, and their rows in one form for each kind."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rft.data.canonical import content_hash
from rft.data.published import raw_rows
from rft.problems import shorten

TRAINING = "numina"  # the kind that is trained on; the others are evaluated on
KINDS = (TRAINING, "math", "gsm8k", "aime")
SUFFIXES = (".parquet", ".jsonl", ".json")
_URL = re.compile(r"(20\d\d)_AIME_(I{1,2})_Problems/Problem_(\d{1,2})\b")  # of the Art of Problem Solving wiki
_YEAR = re.compile(r"20\d\d")


class HubSet(NamedTuple):
    """A data set of the hub."""

    kind: str  # of `KINDS`
    repo: str
    files: re.Pattern  # found in the paths of the files that are taken


# AIME: the first of two copies of a problem stays.
HUB = (
    HubSet(TRAINING, "AI-MO/NuminaMath-1.5", re.compile(r"(^|/)train[-.]")),
    HubSet("math", "EleutherAI/hendrycks_math", re.compile(r"(^|/)test[-.]")),
    HubSet("gsm8k", "openai/gsm8k", re.compile(r"^main/test[-.]")),
    HubSet("aime", "MathArena/aime_2025", re.compile(r"(^|/)train[-.]")),
    HubSet("aime", "HuggingFaceH4/aime_2024", re.compile(r"(^|/)train[-.]")),
    HubSet("aime", "AI-MO/aimo-validation-aime", re.compile(r"(^|/)train[-.]")),
)


class Input(NamedTuple):
    """A file of a published set on this machine."""

    kind: str  # of `KINDS`
    path: Path
    name: str  # in its repository, or below the folder that was given
    source: str  # the repository, or the name of that folder
    revision: str  # commit of the repository; "" of a folder


def evaluation_rows(kind: str, inputs: Iterable[Input]) -> tuple[list[dict], Counter]:
    """Rows of the files of one kind, in the form that `read_published` tells apart; and what was left out, by reason.

    Raises:
        ValueError: file, row and columns of what is no row of this kind.
    """
    rows, dropped = {}, Counter()
    for each in inputs:
        for place, row in raw_rows(each.path):
            try:
                made = _FORMS[kind](_fields(row), f"{each.source}/{each.name}")
            except ValueError as error:
                raise ValueError(f"{each.path} ({each.name}), {place}: {error}") from None
            key = made.get("unique_id") or _aime_id(made) or content_hash(made["problem"])
            if rows.setdefault(key, made) is not made:
                dropped["in an earlier file or row too"] += 1
    return list(rows.values()), dropped


def _fields(row: object) -> dict:
    if not isinstance(row, dict):
        raise ValueError(f"found {shorten(row)}, wanted an object with a problem and its answer")
    return row


def _text(row: dict, *names: str) -> str:
    """The first of some fields, a text; ValueError names the columns where none is there."""
    for name in names:
        if isinstance(row.get(name), str) and row[name].strip():
            return row[name]
    raise ValueError(
        f"found columns {sorted(row)}, wanted text in {' or '.join(map(repr, names))}; fetch the file again"
    )


def _math(row: dict, place: str) -> dict:
    """MATH: EleutherAI/hendrycks_math has `type`, `level` and `solution`, and no id; MATH-500 has `unique_id`."""
    if "level" not in row and "difficulty" not in row:
        raise ValueError(f"found columns {sorted(row)}, wanted 'level' (or 'difficulty'); fetch MATH again")
    made = {"problem": _text(row, "problem"), "level": row.get("level", row.get("difficulty"))}
    made |= {name: row[name] for name in ("answer", "solution") if name in row}
    if "answer" not in row and "solution" not in row:
        raise ValueError(f"found columns {sorted(row)}, wanted 'solution' or 'answer'; fetch MATH again")
    split = "test" if re.search(r"(^|[/_.-])test([/_.-]|$)", place) else "train"
    subject = str(row.get("type") or row.get("subject") or "unknown").lower().replace(" ", "_").replace("&", "and")
    return made | {"unique_id": row.get("unique_id") or f"{split}/{subject}/{content_hash(made['problem'])}"}


def _gsm8k(row: dict, place: str) -> dict:
    """GSM8K: `question` and `answer`, with the number behind `####` at its end."""
    problem, answers = _text(row, "question", "problem"), [row.get("answer"), row.get("solution")]
    stated = [answer for answer in answers if isinstance(answer, str) and "####" in answer]
    if not stated:
        raise ValueError(f"found no answer behind '####' (columns {sorted(row)}), wanted one; fetch GSM8K again")
    return {"problem": problem, "answer": stated[0]}


def _aime(row: dict, place: str) -> dict:
    """AIME: year, contest and number in fields of their own, in `url`, or as `problem_idx` 1 to 30 of one year."""
    made = {"problem": _text(row, "problem", "question"), "answer": row.get("answer")}
    if isinstance(row.get("solution"), str):
        made["solution"] = row["solution"]
    index = row.get("problem_idx")
    if "aime_number" in row:
        return made | {name: row.get(name) for name in ("year", "aime_number", "problem_number")}
    if found := _URL.search(str(row.get("url"))):
        year, contest, number = int(found[1]), len(found[2]), int(found[3])
    elif isinstance(index, int) and 1 <= index <= 30 and (years := _YEAR.findall(place)):
        year, contest, number = int(years[-1]), (index + 14) // 15, (index - 1) % 15 + 1
    else:
        raise ValueError(
            f"found columns {sorted(row)}, wanted year and number: 'year', 'aime_number' and 'problem_number', "
            "a 'url' such as …/2024_AIME_I_Problems/Problem_4, or 'problem_idx' in a folder or file with the year "
            "in its name; fetch AIME as docs/data.md names it"
        )
    return made | {"year": year, "aime_number": contest, "problem_number": number}


def _aime_id(row: dict) -> tuple | None:
    contest = {"I": "1", "II": "2"}.get(row.get("aime_number"), str(row.get("aime_number")))
    return (str(row["year"]), contest, str(row["problem_number"])) if "year" in row else None


_FORMS = {"math": _math, "gsm8k": _gsm8k, "aime": _aime}


def split_files(hub_set: HubSet, names: Iterable[str]) -> list[str]:
    """The files of a repository that are taken: Parquet where there is any, in order.

    Raises:
        ValueError: none of them, or a shard of several is missing (`…-00001-of-00003.parquet`).
    """
    names = list(names)
    fits = sorted(name for name in names if name.endswith(SUFFIXES) and hub_set.files.search(name))
    chosen = [name for name in fits if name.endswith(".parquet")] or fits
    if not chosen:
        listed = ", ".join(sorted(names)[:8]) or "none"
        raise ValueError(
            f"found no data file of {hub_set.repo} that fits {hub_set.files.pattern!r} (files: {listed}), wanted one; "
            "download it and pass --from DIR"
        )
    missing = list(missing_shards(chosen))
    if missing:
        raise ValueError(f"found no {missing[0]} of {hub_set.repo}, wanted all shards; fetch the set again")
    return chosen


def missing_shards(names: list[str]) -> Iterator[str]:
    """Names that the number of shards in another name promises."""
    for stem, count, suffix in sorted({m.groups() for m in map(_shard, names) if m}):
        for number in range(int(count)):
            name = f"{stem}-{number:0{len(count)}}-of-{count}{suffix}"
            if name not in names:
                yield name


def _shard(name: str) -> re.Match | None:
    return re.fullmatch(r"(.*)-\d+-of-(\d+)(\.\w+)", name)
