"""Verdicts on sampled responses: of the grader for answers, of the code server for programs."""

import asyncio
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import rft.code
from rft.code.labels import is_code_label
from rft.code_server import client, grade
from rft.grading import grade as grade_answer
from rft.grading import open_channel
from rft.record.digest import tree_digest

AT_ONCE = 64  # programs that wait for the server


class Response(NamedTuple):
    """What a model said to a problem."""

    text: str  # decoded, special tokens kept, without the prompt
    prompt: str  # as rendered
    label: str


def require_code_server(labels: Iterable[str]) -> None:
    """Before anything is sampled: where a label is one of a code task, a code server must answer, and isolate.

    Raises:
        ValueError: it does not; or with isolation "none", unless RFT_CODE_ALLOW_UNSAFE=1.
    """
    if any(map(is_code_label, labels)):
        level = _run(_level())
        if level == "none" and os.environ.get("RFT_CODE_ALLOW_UNSAFE") != "1":
            raise ValueError(
                "found a code server with isolation none, wanted namespaces or landlock; run it where user namespaces "
                "or Landlock are, or accept it: export RFT_CODE_ALLOW_UNSAFE=1"
            )


def are_correct(responses: list[Response]) -> list[bool]:
    """Whether each response is right: the answer equals the label, or every test of the label passes.

    Raises:
        ValueError: the code server gave no verdict (`rft.code_server.client`); never a wrong answer for that.
    """
    programs = [each for each in responses if is_code_label(each.label)]
    passed = iter(_run(_tested(programs)) if programs else [])
    return [
        next(passed)
        if is_code_label(each.label)
        else grade_answer(each.text, each.label, open_channel(each.prompt)).correct
        for each in responses
    ]


@cache
def code_grader() -> str:
    """Hash of the code that decides a verdict on a program, for a cache of such verdicts."""
    sources = [*sorted(Path(rft.code.__file__).parent.rglob("*.py")), Path(grade.__file__), Path(client.__file__)]
    return "".join(map(tree_digest, sources))


def _run(work) -> object:
    try:
        return asyncio.run(work)
    except client.CodeServerError as error:
        raise ValueError(" ".join(str(error).split())) from error


async def _level() -> str:
    async with client.Client(patience=0.0) as server:
        return (await server.health())["isolation"]


async def _tested(responses: list[Response]) -> list[bool]:
    free = asyncio.Semaphore(AT_ONCE)

    async def tested(each: Response) -> bool:
        async with free:
            return (await grade.grade(server, each.text, each.prompt, each.label)).correct

    async with client.Client() as server:
        return await asyncio.gather(*map(tested, responses))
