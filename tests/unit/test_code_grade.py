"""Responses of code tasks, from text to verdict, with a real code server."""

import asyncio
import gzip
import json

import pytest
from code_servers import serving

from rft.code_server.client import Client
from rft.code_server.grade import grade
from rft.data.code.humaneval import installed, read_humaneval
from rft.data.code.tasks import task_row

CHAT = "<|start|>user<|message|>Solve it.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>{}<|return|>"
EVERY = 8  # of the tasks: every canonical solution of HumanEval is judged elsewhere


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server"), "--workers", "2") as served:
        yield served


def published(name):
    """A field of the tasks as the wheel has it."""
    rows = map(json.loads, gzip.decompress(installed().read_bytes()).splitlines())
    return {row["task_id"]: row[name] for row in rows}


def function_alone(task):
    return task.solution[task.solution.index(f"def {task.entry_point}(") :]


STUBS, BODIES = published("prompt"), published("canonical_solution")
WAYS = {  # of the same solution: response and prompt
    "a chat's block": lambda task: (
        FINAL.format(f"So:\n```python\n{task.solution}```\nUse:\n```python\nf()\n```"),
        CHAT,
    ),
    "the function alone": lambda task: (FINAL.format(f"```python\n{function_alone(task)}```"), CHAT),
    "a base model goes on": lambda task: (f"{BODIES[task.id]}\n\n\ndef another():\n    return 1\n", STUBS[task.id]),
    "few-shot": lambda task: (
        f"{task.solution}[DONE]\n\nYou are an expert",
        "Task 1\n[BEGIN]\nx = 1\n[DONE]\n\n[BEGIN]\n",
    ),
}


async def grades(url, cases):
    async with Client(url) as client:
        return await asyncio.gather(*(grade(client, *case) for case in cases))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_solution_passes_however_it_is_written(server, way):
    tasks = read_humaneval()[::EVERY]
    found = asyncio.run(grades(server.url, [(*way(task), task_row(task, "x")["label"]) for task in tasks]))
    assert len(found) > 20 and all(each.correct and not each.truncated for each in found)
