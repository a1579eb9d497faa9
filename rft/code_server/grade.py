"""One response of a code task, graded: its program taken from the final message, tested by the code server."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import rft.code
from rft.code.extract import extract, open_program
from rft.code.labels import STDIO, Label, parse, runnable
from rft.code_server.client import SECONDS, Answer, Client, CodeServerError
from rft.grading import final_message, open_channel

AT_ONCE = 64  # responses of `grade_all` that wait at the server
CONSENT = "RFT_CODE_ALLOW_UNSAFE"  # 1: verdicts of a server that isolates nothing are taken


class Stated(NamedTuple):
    """The program that a response states."""

    program: str | None  # None: no final message, or no program in it
    method: str  # of `rft.code.extract.METHODS`
    truncated: bool  # the response appears to be cut


class Grade(NamedTuple):
    """Verdict on one response."""

    label_valid: bool  # if not, the response is not tested, and should not be counted
    program: str | None
    method: str
    truncated: bool
    answer: Answer | None  # what the server says of each test; None where it was not asked, for there is no program

    @property
    def pass_rate(self) -> float:
        """Share of the tests that passed, 0 to 1."""
        return sum(self.answer.results) / len(self.answer.results) if self.answer else 0.0

    @property
    def correct(self) -> bool:
        """Whether every test passed."""
        return bool(self.answer) and all(self.answer.results)

    def met(self, cause: str) -> bool:
        """Whether a test ended with this cause."""
        return bool(self.answer) and cause in self.answer.causes


def stated(response: str, prompt: str, label: str) -> Stated:
    """The program of a response (never with its prompt). Nothing is run.

    Of a response in channels the final message alone is read. Where the prompt leaves a program open (`open_program`),
    as with a base model, the response continues it.
    """
    text, _, closed = final_message(response, open_channel(prompt))
    if text is None:
        return Stated(None, "none", bool(response))
    try:
        entry_point = parse(label).entry_point
    except ValueError:
        entry_point = None
    program, method = extract(text, entry_point, open_program(prompt, entry_point))
    return Stated(program, method, not closed and method == "unclosed")


async def grade(client: Client, response: str, prompt: str, label: str | None, seconds: float = SECONDS) -> Grade:
    """Test the program of a response against its label.

    Args:
        response: decoded, special tokens kept, without the prompt.
        prompt: decides which channel is open, and whether a program is.
        label: the JSON text of `rft.code.labels`.
        seconds: CPU time a test may take.

    Raises:
        CodeServerError: no verdict, or none that counts (`require_isolation`). Never a grade of 0.
    """
    found = stated(response, prompt, label)
    try:
        tests = parse(label)
    except ValueError:
        return Grade(False, *found, None)
    answer = None if found.program is None else await ask(client, found.program, tests, seconds)
    return Grade(True, *found, answer)


async def grade_all(responses: Iterable[tuple[str, str, str]], url: str | None = None) -> list[Grade]:
    """`grade` of each (response, prompt, label), by a client of its own for the server at `url` or CODE_SERVER_URL.

    Raises:
        CodeServerError: no verdict.
    """
    room = asyncio.Semaphore(AT_ONCE)

    async def one(response: str, prompt: str, label: str) -> Grade:
        async with room:
            return await grade(client, response, prompt, label)

    async with Client(url) as client:
        return await asyncio.gather(*(one(*each) for each in responses))


async def ask(client: Client, program: str, label: Label, seconds: float = SECONDS) -> Answer:
    """The server's verdict on a program that `extract` has given.

    Raises:
        CodeServerError: no verdict, or none that counts (`require_isolation`).
    """
    if label.kind == STDIO:
        answer = await client.test_program_stdio(program, list(label.tests), max_execution_time=seconds)
    else:
        answer = await client.test_program(
            runnable(label, program),
            list(label.tests),
            setup=label.setup,
            entry_point=label.entry_point,
            max_execution_time=seconds,
        )
    require_isolation(answer.isolation, client.url)  # of each answer: the server may be another one by now
    return answer


async def isolation_of(url: str | None = None, **options: float) -> str:
    """The isolation level of the server at `url` or CODE_SERVER_URL; `options` of `Client`. Raises CodeServerError."""
    async with Client(url, **options) as client:
        return (await client.health())["isolation"]


def is_refused(level: str) -> bool:
    """Whether programs of the model would run unconfined, and nobody has agreed to that."""
    return level == "none" and os.environ.get(CONSENT) != "1"


def sources() -> list[Path]:
    """The files that decide a verdict, for caches and records of verdicts."""
    return [
        *sorted(Path(rft.code.__file__).parent.rglob("*.py")),
        Path(__file__),
        Path(__file__).with_name("client.py"),
    ]


def require_isolation(level: str, url: str) -> None:
    """Raise CodeServerError where `is_refused`."""
    if is_refused(level):
        raise CodeServerError(
            f"found the code server at {url} with isolation none: programs of the model can do all that its user can\n"
            "  wanted: namespaces or landlock\n  repair: run it where user namespaces or Landlock are "
            f"(docs/code_rewards.md), or accept it: export {CONSENT}=1"
        )
