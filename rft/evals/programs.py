"""Verdicts on responses to problems whose labels are tests of programs, from the code server."""

import asyncio

from rft.code.labels import is_code_label
from rft.code_server.client import Client
from rft.code_server.grade import Grade, grade

AT_ONCE = 64  # requests that wait at the server


def judged(records: list[dict], prompts: dict[str, str]) -> list[dict]:
    """The records, those with a code label with the verdict of its tests instead of the mathematical grader's.

    Args:
        records: see `rft.evals.scores.record`.
        prompts: text of each prompt, by its digest.

    Raises:
        CodeServerError: the server at CODE_SERVER_URL gives no verdict.
    """
    asked = [number for number, record in enumerate(records) if is_code_label(record["label"])]
    grades = asyncio.run(_grade_all([(records[n], prompts[records[n]["prompt"]]) for n in asked])) if asked else []
    found = list(records)
    for number, verdict in zip(asked, grades, strict=True):
        found[number] = records[number] | {
            "answer": verdict.program,
            "correct": verdict.correct,
            "correct_lenient": verdict.correct,
            "has_boxed": False,
            "label_valid": verdict.label_valid,
        }
    return found


async def _grade_all(pairs: list[tuple[dict, str]]) -> list[Grade]:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(record: dict, prompt: str) -> Grade:
        async with room:
            return await grade(client, record["response"], prompt, record["label"])

    async with Client() as client:
        return await asyncio.gather(*(one(record, prompt) for record, prompt in pairs))
