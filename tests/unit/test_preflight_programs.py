"""Preflight's look at programs: labels and reward that fit, and the code server that the reward will ask."""

import json
import subprocess
import sys
from argparse import Namespace

import pytest
from code_servers import serving

from rft.code_server.client import URL_VARIABLE
from rft.code_server.grade import CONSENT
from rft.runs.preflight.lines import GO, NO_GO, WARN
from rft.runs.preflight.programs import check_programs

TESTS = json.dumps({"kind": "mbpp", "setup": "", "tests": ["assert f(1) == 1"], "entry_point": "f"})
EM, CODE, OWN = "rewards/reward_func_em.py", "rewards/reward_func_code.py", "rewards/own.py"
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """A function from a reward, labels of training and evaluation, and a server's address to the page's lines."""

    def check(
        reward: str, training: list[str], evaluation: list[str], url: str = NOWHERE
    ) -> dict[str, tuple[str, str]]:
        monkeypatch.setenv(URL_VARIABLE, url)
        files = {}
        for name, labels in (("train", training), ("held", evaluation)):
            files[name] = tmp_path / f"{name}.jsonl"
            rows = [{"input": f"{name} {number}", "label": label} for number, label in enumerate(labels)]
            files[name].write_text("".join(json.dumps(row) + "\n" for row in rows))
        args = Namespace(remote_rm_url=reward, prompt_data=str(files["train"]), eval_dataset="", label_key="label")
        return {line.name: (line.verdict, line.measured) for line in check_programs(args, str(files["held"]))}

    return check


def test_a_run_without_programs_has_no_line(checked):
    assert checked(EM, ["4", '{"a": 1}', "\\frac{1}{2}"], ["5"]) == {}


@pytest.mark.parametrize(
    ("reward", "training", "evaluation", "verdict", "measured"),
    [
        (CODE, [TESTS, TESTS], [TESTS], GO, "labels: mbpp 3"),
        (CODE, [TESTS, "4"], [TESTS], NO_GO, "1 labels of --prompt_data are no tests of programs"),
        (CODE, ["4"], ["5"], NO_GO, "1 labels of --prompt_data are no tests of programs"),
        (EM, [TESTS, TESTS], ["5"], NO_GO, "2 labels of --prompt_data are tests of programs"),
        (EM, ["4"], [TESTS], GO, "labels: mbpp 1, other 1"),  # graded after training, by the label's kind
        (OWN, [TESTS], [TESTS], GO, "labels: mbpp 2"),
    ],
)
def test_labels_that_the_reward_cannot_grade_are_a_no_go(checked, reward, training, evaluation, verdict, measured):
    found = checked(reward, training, evaluation)
    assert found["programs"][0] == verdict and found["programs"][1].startswith(measured)
    assert (
        found["code server"][0] == NO_GO and f"no answer from the code server at {NOWHERE}" in found["code server"][1]
    )


def test_a_server_that_answers_is_a_go_with_its_isolation(checked, tmp_path):
    command = [sys.executable, "-m", "rft.code_server", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            said = ""
            while "serves at " not in said:
                said = server.stderr.readline()
                assert said, "the server has ended"
            url = said.split("serves at ")[1].split(": ")[0]
            verdict, measured = checked(CODE, [TESTS], [TESTS], url)["code server"]
        finally:
            server.terminate()
            server.communicate(timeout=120)
    assert verdict == GO and measured.startswith(f"{url}, isolation ")


def test_a_server_without_isolation_is_a_no_go_until_that_is_accepted(checked, monkeypatch, tmp_path):
    monkeypatch.delenv(CONSENT, raising=False)
    with serving(tmp_path, "--isolation", "none", "--allow-unsafe") as served:
        assert checked(CODE, [TESTS], [TESTS], served.url)["code server"][0] == NO_GO
        monkeypatch.setenv(CONSENT, "1")
        assert checked(CODE, [TESTS], [TESTS], served.url)["code server"][0] == WARN
