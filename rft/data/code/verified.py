"""Whether reference solutions pass their own tests, by the judge that grades the model's programs."""

import asyncio
from collections.abc import Iterable

from rft.code.judge import Verdicts, verify, verify_stdio
from rft.code.sandbox import IsolationError, Pool
from rft.data.code.tasks import Task

ALLOWED = 0.01  # share of the tasks whose solution may fail: a judge's boundary does not take every object
SECONDS = 5.0  # of CPU time a test


def failures(tasks: Iterable[Task]) -> tuple[str, dict[str, str]]:
    """The sandboxes' isolation level; and by id what went wrong in each task whose solution does not pass.

    Tasks without a solution are left out. Two cores need about 20 s for MBPP and HumanEval.

    Raises:
        ValueError: this machine cannot isolate programs; more than `ALLOWED` of the solutions fail.
    """
    judged = [task for task in tasks if task.solution]
    try:
        level, verdicts = asyncio.run(_verdicts(judged))
    except IsolationError as error:
        raise ValueError(f"{error}; leave --verify out, or run it where programs can be isolated") from error
    found = {task.id: _fault(each) for task, each in zip(judged, verdicts, strict=True) if not all(each.results)}
    if len(found) > ALLOWED * len(judged):
        listed = "; ".join(f"{name}: {fault}" for name, fault in list(found.items())[:5])
        raise ValueError(
            f"found {len(found)} of {len(judged)} solutions that fail their own tests ({listed}), wanted at most "
            f"{ALLOWED:.0%}; correct these tasks"
        )
    return level, found


def _fault(verdicts: Verdicts) -> str:
    """Number, cause and note of the first test that did not pass."""
    place = verdicts.results.index(0)
    return f"test {place + 1} {verdicts.causes[place]} {' '.join(verdicts.notes[place].split())[:100]}".strip()


async def _verdicts(tasks: list[Task]) -> tuple[str, list[Verdicts]]:
    async with Pool() as pool:
        return pool.level, await asyncio.gather(*(_verdict(pool, task) for task in tasks))


async def _verdict(pool: Pool, task: Task) -> Verdicts:
    if task.kind == "stdio":
        return await verify_stdio(pool, task.solution, task.tests, seconds=SECONDS)
    return await verify(
        pool, task.solution, task.tests, setup=task.setup, entry_point=task.entry_point, seconds=SECONDS
    )
