"""Verdicts on responses to problems whose labels are tests of programs, from the code server."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rft.code.labels import is_code_label
from rft.code_server.grade import grade_all, isolation_of, require_isolation
from rft.code_server.own import code_server


@contextmanager
def judge_of(problems: Iterable[dict]) -> Iterator[str | None]:
    """The address of the code server that judges these problems, None where no label has tests.

    One that gives no verdicts is noticed here, before anything is sampled.

    Raises:
        CodeServerError: it cannot be started, does not answer, or isolates nothing.
    """
    if not any(is_code_label(problem["label"]) for problem in problems):
        yield None
        return
    with code_server() as url:
        require_isolation(asyncio.run(isolation_of(url)), url)
        yield url


def judged(records: list[dict], prompts: dict[str, str], url: str | None) -> list[dict]:
    """The records, those with a code label with the verdict of its tests.

    Added to these: `answer` (the program, or None), `correct` (every test passed), `pass_rate`, `causes` (one a test),
    `isolation`, `label_valid`.

    Args:
        records: see `rft.evals.scores.record`.
        prompts: text of each prompt, by its digest.
        url: of the server, `judge_of`.

    Raises:
        CodeServerError: the server gives no verdict.
    """
    asked = [number for number, record in enumerate(records) if is_code_label(record["label"])]
    responses = [(one["response"], prompts[one["prompt"]], one["label"]) for one in (records[n] for n in asked)]
    found = list(records)
    for number, verdict in zip(asked, asyncio.run(grade_all(responses, url)) if asked else [], strict=True):
        found[number] = records[number] | {
            "answer": verdict.program,
            "correct": verdict.correct,
            "pass_rate": verdict.pass_rate,
            "causes": verdict.answer.causes if verdict.answer else [],
            "isolation": verdict.answer.isolation if verdict.answer else None,
            "label_valid": verdict.label_valid,
        }
    return found
