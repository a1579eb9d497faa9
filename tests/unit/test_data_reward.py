"""A reward function is called on a few problems before a training does."""

import json
import sys
from pathlib import Path

import pytest

from rft.data import __main__ as command
from rft.data.reward_trial import load, try_reward
from rft.problems import problem_row

ROOT = Path(__file__).resolve().parents[2]
HEAD = "def reward_func(queries, prompts, labels, **kwargs):\n    "


@pytest.fixture
def problems(tmp_path) -> Path:
    rows = [problem_row(f"{i} + 1 =", str(i + 1), f"p/{i}", "p") for i in range(6)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "p.jsonl"


def test_the_exact_match_is_tried_on_the_first_problems(problems):
    found = try_reward(ROOT / "rewards" / "reward_func_em.py", problems)
    assert [(right, none) for _, right, none in found] == [(1.0, 0.0)] * 4
    assert found[3][0].endswith("p.jsonl, line 4, label '4'")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "found no file"),
        ("def reward(: pass", "cannot be loaded (SyntaxError"),
        (
            "import nothing_of_this_name",
            "ModuleNotFoundError: No module named 'nothing_of_this_name'; reward.py, line 1",
        ),
        ("reward_func = 3", "found no reward_func, wanted def reward_func(queries"),
        (HEAD + "return 1 / 0", "raised ZeroDivisionError: division by zero; reward.py, line 2 for "),
        (HEAD + "return {'score': [1.0]}", "returned no reward"),
        (HEAD + "return {'rewards': [1.0, 2.0]}", "returned 2 rewards for 1 sample"),
        (HEAD + "return {'rewards': [float('nan')]}", "nan"),
    ],
)
def test_what_would_stop_a_training_is_said_before(problems, monkeypatch, capsys, text, words):
    file = problems.with_name("reward.py")
    if text is not None:
        file.write_text(text + "\n")
    monkeypatch.setattr(sys, "argv", ["rft.data", "check", str(problems), "--reward", str(file)])
    assert command.main() == 2
    error = capsys.readouterr().err
    assert words in error and len(error.splitlines()) == 1, error


def test_the_reward_of_the_documentation_is_as_shown(problems):
    """docs/own_task.md: nearly right is worth something."""
    page = (ROOT / "docs" / "own_task.md").read_text()
    file = problems.with_name("reward.py")
    file.write_text(page.partition("Write `runs/own/reward.py`:\n```python\n")[2].partition("```")[0])
    reward_func, prompt = load(file), "10 + 24 =\n"
    for answer, reward, correct in (("34", 1, 1), ("29", 0.75, 0), ("80", 0, 0), ("-3", 0, 0), ("x", 0, 0)):
        found = reward_func([f"{prompt}\\boxed{{{answer}}}"], [prompt], ["34"])
        assert (found["rewards"].item(), found["extra_logs"]["correctness"].item()) == (reward, correct), answer
