"""A program of the model run as a script: its standard input, and what it printed."""

import asyncio

from rft.code import values
from rft.code.sandbox import Died
from rft.code.solution import Failed, Solution, answer, text


async def run_script(solution: Solution, given: bytes = b"") -> tuple[bytes, str]:
    """Run it to its end: its standard output, and the traceback or status with which it ended other than well.

    Raises Failed for a program that is not compiled, takes too long, prints too much or is killed.
    """
    await solution.begin(as_script=True)
    number = 0
    await solution.sandbox.send(values.encode((number, "script", given)))
    try:
        _, error, _ = answer(await solution.receive(), number)
    except Failed as failed:
        ended = failed.__cause__
        if not (isinstance(ended, Died) and ended.cause.startswith("exit status")):
            raise
        error = values.encode("" if ended.cause == "exit status 0" else ended.cause)
    await _drained(solution)
    return bytes(solution.sandbox.output), text(error)


async def _drained(solution: Solution) -> None:
    """Wait until what the program printed has been read: a full pipe takes a few turns of the loop."""
    known, quiet = -1, 0
    while quiet < 3:
        quiet = quiet + 1 if len(solution.sandbox.output) == known else 0
        known = len(solution.sandbox.output)
        await asyncio.sleep(0)
