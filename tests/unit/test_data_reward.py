"""A reward function is called on a few problems before a training does."""

import json
import os
import re
import subprocess
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
    assert [(trial.right, trial.none) for trial in found] == [(1.0, 0.0)] * 4
    assert found[3].where.endswith("p.jsonl, line 4, label '4'")


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


@pytest.fixture(scope="module")
def followed(tmp_path_factory) -> tuple[Path, str]:
    """docs/own_task.md up to its check, carried out in a folder; what the check printed."""
    place, page = tmp_path_factory.mktemp("own"), (ROOT / "docs" / "own_task.md").read_text()
    make, check = re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[:2]
    run = {"cwd": place, "env": os.environ | {"PYTHONPATH": str(ROOT)}, "capture_output": True, "text": True}
    subprocess.run(["bash", "-euc", make], check=True, **run)
    reward = page.partition("Write `runs/own/reward.py`:\n```python\n")[2].partition("```")[0]
    (place / "runs" / "own" / "reward.py").write_text(reward)
    done = subprocess.run(["bash", "-euc", check.replace(".venv/bin/python", sys.executable)], check=True, **run)
    return place / "runs" / "own", done.stdout


def test_the_page_can_be_followed(followed):
    place, printed = followed
    for words in ("train.jsonl: 64 problems", "heldout.jsonl: 26 problems", "no problem in two of the 2 files"):
        assert words in printed
    assert printed.count("reward 1 for \\boxed{label}, 0 for no answer") == 4
    shown = re.search(r"```json\n(.*)\n```", (ROOT / "docs" / "own_task.md").read_text())[1]
    assert (place / "train.jsonl").read_text().splitlines()[0] == shown


def test_the_reward_of_the_page_pays_for_near_misses(followed):
    reward_func, prompt = load(followed[0] / "reward.py"), "10 + 24 =\n"
    for answer, reward, correct in (("34", 1, 1), ("29", 0.75, 0), ("80", 0, 0), ("-3", 0, 0), ("x", 0, 0)):
        found = reward_func([f"{prompt}\\boxed{{{answer}}}"], [prompt], ["34"])
        assert (found["rewards"].item(), found["extra_logs"]["correctness"].item()) == (reward, correct), answer
