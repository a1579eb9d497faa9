"""Call a reward function on a few problems before a training does: as OpenRLHF loads and calls it."""

import importlib.util
from pathlib import Path
from typing import NamedTuple

from rft.code.labels import is_code_label
from rft.data.row_files import read_rows
from rft.grading.short_answer import is_search_label
from rft.hooks.rewards import RewardError, merge
from rft.problems import problem_text, shorten

TRIED = 4  # problems


class Trial(NamedTuple):
    """What a reward says of one problem."""

    where: str
    answer: str | None  # what the right answer was, in words; None where none is known
    right: float | None  # its reward
    none: float  # reward of no answer


def try_reward(file: Path, dataset: Path) -> list[Trial]:
    """The rewards of the right answer, and of none, for the first problems of a file.

    The right answer is the label in a box; of a code task its reference solution, where the row has one.

    Raises:
        ValueError: no file, no `reward_func` in it, it raises, or returns what the trainer would refuse.
    """
    reward_func = load(file)
    found = []
    for _, (number, fields) in zip(range(TRIED), read_rows(dataset), strict=False):
        label, prompt = fields["label"], f"{problem_text(fields)}\n"
        where = f"{dataset}, line {number}, label {shorten(label)}"
        if is_search_label(label):
            raise ValueError(
                f"{where}: found a question to search for, whose reward is the agent's; leave --reward out"
            )
        answer, text = right_answer(fields)
        right = None if text is None else _call(reward_func, file, prompt, text, label, where)
        found.append(Trial(where, answer, right, _call(reward_func, file, prompt, "", label, where)))
    return found


def right_answer(row: dict) -> tuple[str | None, str | None]:
    """The right answer of a problem in words, and as the response of a model; None and None where it is not known."""
    if not is_code_label(row["label"]):
        return "\\boxed{label}", f"\\boxed{{{row['label']}}}"
    solution = row.get("solution")
    return ("the solution", f"```python\n{solution}\n```") if isinstance(solution, str) else (None, None)


def load(file: Path):
    """`reward_func` of a file, by its path and outside of any package, as the engine's process loads it."""
    if not file.is_file():
        raise ValueError(f"found no file {file}, wanted a Python file with reward_func; correct --reward")
    spec = importlib.util.spec_from_file_location("reward_func", file)
    if spec is None:
        raise ValueError(f"found {file}, wanted a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the file does
        raise ValueError(f"{file}: cannot be loaded ({_named(error)}); correct the file") from error
    if not callable(getattr(module, "reward_func", None)):
        raise ValueError(f"{file}: found no reward_func, wanted def reward_func(queries, prompts, labels, **kwargs)")
    return module.reward_func


def _call(reward_func, file: Path, prompt: str, answer: str, label: object, where: str) -> float:
    try:
        result = reward_func([prompt + answer], [prompt], [label])
        return merge([result], str(file), where)["reward"]
    except RewardError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except Exception as error:  # whatever the file does
        raise ValueError(f"{file}: reward_func raised {_named(error)} for {where}, answer {shorten(answer)}") from error


def _named(error: Exception) -> str:
    """The error with the line of the user's file where it arose."""
    last = error.__traceback__
    while last.tb_next:
        last = last.tb_next
    return f"{type(error).__name__}: {error}; {Path(last.tb_frame.f_code.co_filename).name}, line {last.tb_lineno}"
