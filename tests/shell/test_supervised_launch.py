"""launch/sft.sh: what a supervised run asks before and after its training, what it refuses, how it ends."""

import json
import shlex
from pathlib import Path

import pytest
from launching import ROOT, STUB, body, launch

from rft.problems import problem_row
from rft.runs.format_check import chosen

SFT = ROOT / "launch/sft_20b.sh"
PIPELINE = """
PYTHON=$STUB TRAINER=sft
MODEL_ARGS=(--pretrain m)
use tasks/sft
SFT_ARGS+=(--train_batch_size 8 --micro_train_batch_size 8)
begin_run "$@"; train_supervised "$@"; echo done
"""


@pytest.fixture
def launched_as(tmp_path):
    """A function from variables to what launch.json keeps of them."""

    def of(**variables: str) -> dict[str, str]:
        script = tmp_path / "start.sh"
        script.write_text(f'source "{ROOT}/launch/common.sh"\nmkdir -p "$RUN_DIR"\nrecord_start\n')
        done = launch(script, tmp_path, **variables)
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "run/launch.json").read_text())["environment"]

    return of


def test_a_resumed_run_asks_as_many_problems_as_at_its_start(launched_as):
    given = {"FORMAT_PROBLEMS": "200", "FORMAT_TOKENS": "4096", "SFT_RANKS": "2"}
    assert given.items() <= launched_as(**given).items()
    assert not given.keys() & launched_as().keys()


@pytest.fixture
def pipeline(tmp_path):
    """Runs a supervised pipeline over stubs; returns the status, the lines of what was called, and what was printed."""

    def start(*arguments, training=0, after=0, summary=0, **environment):
        stub, calls = tmp_path / "stub", tmp_path / "calls"
        calls.write_text("")
        stub.write_text(STUB)
        stub.chmod(0o755)
        statuses = {"TRAINING": str(training), "PREFLIGHT_STATUS": "0", "AFTER": str(after), "SUMMARY": str(summary)}
        statuses |= {"STUB": str(stub), "CALLS": str(calls), "BEST": ""}
        done = launch(body(tmp_path, PIPELINE), tmp_path, *arguments, **statuses, **environment)
        return done.returncode, calls.read_text().splitlines(), done.stdout + done.stderr

    return start


@pytest.mark.parametrize("given", [{}, {"EVAL_DATASET": "own.jsonl"}])
def test_preflight_knows_the_problems_of_the_format_check(pipeline, tmp_path, given):
    status, called, printed = pipeline(**given)
    assert status == 0, printed
    (words,) = (line.split() for line in called if line.startswith("rft.runs.preflight"))
    wanted = given.get("EVAL_DATASET", f"{tmp_path}/cache/data/probe_set_1000_ood.jsonl")
    assert words[3 : words.index("--")] == [f"--also-evaluated={wanted}"]


@pytest.mark.parametrize(("after", "summary", "status"), [(2, 2, 2), (1, 0, 0), (3, 0, 0), (137, 2, 137), (0, 4, 4)])
def test_a_run_that_cannot_be_measured_says_so_and_is_reported(pipeline, after, summary, status):
    """What was learned is paid for; 1 and 3 are verdicts."""
    code, called, printed = pipeline(after=after, summary=summary)
    assert code == status, printed
    assert [line.split()[0] for line in called[-2:]] == ["rft.runs.sft_summary", "rft.runs.report"]
    assert (f"the format check of the adapter failed with exit status {after}" in printed) == (after in (2, 137))
    assert ("error: the summary failed" in printed) == bool(summary) and ("done" in printed) == (status == 0)


def test_two_files_of_problems_are_refused_before_anything_is_made(tmp_path):
    for more in ({}, {"DRY_RUN": "1"}):
        done = launch(SFT, tmp_path, EVAL_DATASET="a.jsonl,b.jsonl", **more)
        assert done.returncode == 1 and not done.stdout
        assert done.stderr.splitlines()[:2] == [
            "error: the format is checked on one file of problems", "  found:  EVAL_DATASET=a.jsonl,b.jsonl"
        ]  # fmt: skip
    assert not (tmp_path / "run").exists()


def checks(place, *options: str, **variables: str) -> list[list[str]]:
    """The words of the format checks that a dry run of launch/sft_20b.sh prints, before and after."""
    done = launch(SFT, place, *options, DRY_RUN="1", **variables)
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in done.stdout.splitlines() if "rft.runs.format_check" in line]


def test_the_launcher_asks_the_problems_that_the_command_asks(tmp_path, monkeypatch):
    """MATH's of level 4 and 5, though the file has others too."""
    rows = [problem_row(f"{n} + 1?", str(n + 1), f"p{n}", "math" if n % 2 else "gsm8k") for n in range(200)]
    file = tmp_path / "cache/data/probe_set_1000_ood.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for words in checks(tmp_path):
        variable, _, value = words[1].partition("=")
        monkeypatch.setenv(variable, value)
        asked = chosen(Path(words[words.index("--data") + 1]), int(words[words.index("--n") + 1]), 0)
        assert asked == chosen(None, 73, 0) and {problem["datasource"] for problem in asked} == {"math"}
    other = tmp_path / "other.jsonl"
    other.write_text(file.read_text())
    (words, _) = checks(tmp_path, EVAL_DATASET=str(other))
    assert {problem["datasource"] for problem in chosen(Path(words[words.index("--data") + 1]), 73, 0)} > {"math"}


@pytest.mark.parametrize(
    ("given", "effort"),
    [({}, "own"), ({"RECIPE": "tuned"}, "medium"), ({"RECIPE": "tuned", "EFFORT": "low"}, "low")],
)
def test_the_prompts_have_the_effort_of_grpo_afterwards(tmp_path, given, effort):
    for launcher, module in ((SFT, "train_sft"), (ROOT / "launch/train_grpo_20b.sh", "train_ppo_ray")):
        done = launch(launcher, tmp_path, DRY_RUN="1", **given)
        (training,) = (line for line in done.stdout.splitlines() if f"openrlhf.cli.{module}" in line)
        assert (f"--reasoning_effort {effort} " in training) == (effort != "own") == ("_effort" in training)
    for words in checks(tmp_path, **given):
        assert words[words.index("--reasoning-effort") + 1] == effort
    behind = checks(tmp_path, "--reasoning_effort", "high", **given)
    assert {words[words.index("--reasoning-effort") + 1] for words in behind} == {"high"}


def test_an_effort_that_the_recipe_has_not_is_refused(tmp_path):
    done = launch(SFT, tmp_path, DRY_RUN="1", EFFORT="low")
    assert done.returncode == 1 and "error: EFFORT chooses between two forms of the recipe tuned" in done.stderr
