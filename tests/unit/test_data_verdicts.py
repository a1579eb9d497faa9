"""Verdicts on sampled responses and a reward's trial, with a real code server where labels are tests."""

import json
from pathlib import Path

import pytest
from code_servers import serving

from rft.code.labels import is_code_label
from rft.data.pass_rates import Sampling, estimate, problem_key
from rft.data.reward_trial import try_reward
from rft.data.verdicts import Response, are_correct, require_code_server

ROOT = Path(__file__).resolve().parents[2]
ADD = json.dumps({"kind": "mbpp", "tests": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"], "entry_point": "add"})
SHOUT = json.dumps({"kind": "stdio", "tests": [{"input": "ab", "output": "AB"}]})
PROMPT = "Write add(a, b)."


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server"), "--concurrency", "2") as served:
        yield served


@pytest.fixture
def asked(server, monkeypatch) -> None:
    monkeypatch.setenv("CODE_SERVER_URL", server.url)


def block(program: str) -> str:
    return f"Here:\n```python\n{program}\n```"


def test_each_response_is_judged_by_its_label(asked):
    cases = [
        (block("def add(a, b):\n    return a + b"), ADD, True),
        ("The sum is \\boxed{3}.", "3", True),
        (block("def add(a, b):\n    return 3"), ADD, False),  # one test of two
        (block("print(input().upper())"), SHOUT, True),
        ("No program.", ADD, False),
        ("\\boxed{4}", "3", False),
        (block("print(input())"), SHOUT, False),
    ]
    require_code_server(label for _, label, _ in cases)
    assert are_correct([Response(text, PROMPT, label) for text, label, _ in cases]) == [right for *_, right in cases]


def test_no_server_is_no_wrong_answer(monkeypatch, tmp_path):
    """Said before an engine starts; files of answers need no server."""
    monkeypatch.setenv("CODE_SERVER_URL", "http://127.0.0.1:9")
    require_code_server(["3", "4"])
    with pytest.raises(ValueError, match=r"no answer from the code server at http://127.0.0.1:9/health"):
        require_code_server(["3", ADD])
    row = {"input": [{"role": "user", "content": PROMPT}], "label": ADD, "id": "a"}
    (tmp_path / "p.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "config.json").write_text("{}")
    sampling = Sampling(n=1, temperature=1.0, top_p=1.0, max_tokens=8, max_prompt_tokens=64, seed=0)
    with pytest.raises(ValueError, match=r"no answer from the code server"):
        estimate(str(tmp_path), tmp_path / "p.jsonl", sampling, tmp_path / "c.jsonl", tmp_path / "o.jsonl")
    assert not (tmp_path / "o.jsonl").exists()


def test_a_server_without_isolation_is_refused_unless_accepted(tmp_path, monkeypatch):
    with serving(tmp_path, "--isolation", "none", "--allow-unsafe") as served:
        monkeypatch.setenv("CODE_SERVER_URL", served.url)
        with pytest.raises(ValueError, match="found a code server with isolation none"):
            require_code_server([ADD])
        monkeypatch.setenv("RFT_CODE_ALLOW_UNSAFE", "1")
        require_code_server([ADD])


def test_another_judge_makes_another_verdict(monkeypatch):
    row = {"input": PROMPT, "label": ADD}
    before = problem_key(row), problem_key(row | {"label": "3"})
    monkeypatch.setattr("rft.data.pass_rates.code_grader", lambda: "another")
    assert problem_key(row) != before[0] and problem_key(row | {"label": "3"}) == before[1]


def test_a_reward_of_programs_is_tried_with_the_solution(asked, tmp_path):
    rows = [
        {"input": PROMPT, "label": ADD, "id": "a", "solution": "def add(a, b):\n    return a + b"},
        {"input": PROMPT + "!", "label": ADD, "id": "b"},
    ]
    assert all(is_code_label(row["label"]) for row in rows)
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trials = try_reward(ROOT / "rewards" / "reward_func_code.py", tmp_path / "p.jsonl")
    assert [(trial.answer, trial.right, trial.none) for trial in trials] == [("the solution", 1, 0), (None, None, 0)]
