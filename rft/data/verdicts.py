"""Verdicts on sampled responses: of the grader for answers, of the code server for programs."""

import asyncio
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from rft.code.labels import is_code_label
from rft.code_server import CodeServerError, grade
from rft.grading import grade as grade_answer
from rft.grading import open_channel
from rft.grading.short_answer import is_search_label
from rft.problems import shorten
from rft.record.digest import tree_digest


class Response(NamedTuple):
    """What a model said to a problem."""

    text: str  # decoded, special tokens kept, without the prompt
    prompt: str  # as rendered
    label: str


def require_no_search(labels: Iterable[str]) -> None:
    """Before anything is sampled: ValueError where a label asks for a search, which a single response does not make."""
    if label := next(filter(is_search_label, labels), None):
        raise ValueError(
            f"found the label {shorten(label)} of a question to search for, wanted answers or tests: one response "
            "without a retriever says nothing of an agent; pass --evaluation FILE in place of --model and --cache, "
            "what .venv/bin/python eval/eval_posthoc.py --agent search --mode sampling_pass@8 writes to --output FILE"
        )


def require_code_server(labels: Iterable[str]) -> None:
    """Before anything is sampled: where a label is one of a code task, a code server must answer, and isolate.

    Raises:
        ValueError: it does not; or with isolation "none", unless RFT_CODE_ALLOW_UNSAFE=1.
    """
    if any(map(is_code_label, labels)) and grade.is_refused(_run(grade.isolation_of(patience=0.0))):
        raise ValueError(
            "found a code server with isolation none, wanted namespaces or landlock; run it where user namespaces "
            f"or Landlock are, or accept it: export {grade.CONSENT}=1"
        )


def are_correct(responses: list[Response]) -> list[bool]:
    """Whether each response is right: the answer equals the label, or every test of the label passes.

    Raises:
        ValueError: the code server gave no verdict (`rft.code_server.client`); never a wrong answer for that.
    """
    programs = [each for each in responses if is_code_label(each.label)]
    passed = iter(_run(grade.grade_all(programs)) if programs else [])
    return [
        next(passed).correct
        if is_code_label(each.label)
        else grade_answer(each.text, each.label, open_channel(each.prompt)).correct
        for each in responses
    ]


@cache
def code_grader() -> str:
    """Hash of the code that decides a verdict on a program, for a cache of such verdicts."""
    return "".join(map(tree_digest, grade.sources()))


def _run(work) -> object:
    try:
        return asyncio.run(work)
    except CodeServerError as error:
        raise ValueError(" ".join(str(error).split())) from error
