"""launch/sweep_lr.sh: what it runs, what it refuses, and how it goes on. The runs' own commands: test_launchers.py.

The launcher that it starts here trains nothing: it claims its directory as every launcher does, and leaves a result.
"""

import json
import os
import shlex
import shutil
import subprocess

import pytest
from launching import ROOT, launch

from rft.evals.scores import summarize

SWEEP = ROOT / "launch/sweep_lr.sh"
LAUNCHER = """#!/usr/bin/env bash
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
MODEL_ARGS=(--pretrain m)
GRPO_ARGS=(--remote_rm_url r)
begin_run "$@"
rate=${OPTION[actor_learning_rate]}
[[ $DRY_RUN != 1 ]] || exit 0
[[ $PREFLIGHT != only ]] || { [[ ! -f $ROOT/refused_$rate ]]; exit; }
echo "$rate" >>"$ROOT/tried"
[[ ! -f $ROOT/broken_$rate ]] || exit 3
cp -r "$ROOT/results/$rate/." "$RUN_DIR"
"""


@pytest.fixture
def checkout(tmp_path):
    """A copy of what a sweep needs, with a launcher that solves the more problems the higher the rate is."""
    place = tmp_path / "checkout"
    for folder in ("launch", "rft"):
        shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (place / ".venv").symlink_to(ROOT / ".venv")
    (place / "launch/train_quick.sh").write_text(LAUNCHER)
    for rate, right in (("0.0", 10), ("1e-05", 20), ("0.0002", 40)):
        run = place / "results" / rate
        (run / "evals").mkdir(parents=True)
        before, after = (evaluation(name, solved) for name, solved in (("before", 10), ("after", right)))
        (run / "evals/after.json").write_text(json.dumps([after]))
        (run / "evals/before.json").write_text(json.dumps([before]))
        (run / "result.json").write_text(json.dumps({"before": before, "after": after, "steps": 1}))
        (run / "run.json").write_text(json.dumps({"command": []}))
        (run / "training_metrics.jsonl").write_text('{"global_step": 1, "sync_output_kept_share": 0.75}\n')
    return place


def evaluation(name: str, right: int) -> dict:
    records = [
        {
            "id": f"p{i}", "index": 0, "label": "7", "response": "r", "answer": "7", "correct": i < right,
            "correct_lenient": i < right, "has_boxed": True, "label_valid": True, "truncated": False, "tokens": 10,
        }
        for i in range(60)
    ]  # fmt: skip
    given = {"model": name, "kind": "adapter", "dataset": "d.jsonl", "mode": "greedy_pass@1", "problems": "x"}
    given |= {"max_tokens": 64, "weights": {"base": "b" * 64}}
    return given | summarize(records, "greedy_pass@1") | {"records": records}


def sweep(checkout, *arguments, **environment):
    kept = {"PATH": os.environ["PATH"], "HOME": str(checkout), "RFT_STACK": "cpu", "RATES": "2e-4 1e-5"}
    return subprocess.run(
        ["bash", checkout / "launch/sweep_lr.sh", "launch/train_quick.sh", *arguments],
        env=kept | {"RUN_DIR": str(checkout / "sweep")} | environment,
        cwd=checkout, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def tried(checkout):
    return (checkout / "tried").read_text().split()


def test_each_rate_is_run_in_its_own_directory_and_judged_on_one_page(checkout):
    done = sweep(checkout, "--max_samples", "64")
    assert done.returncode == 0, done.stderr
    assert tried(checkout) == ["0.0", "0.0002", "1e-05"]
    page = (checkout / "sweep/verdicts.md").read_text()
    assert page in done.stdout and page.count("**better**") == 3  # of three pairs
    assert (checkout / "sweep/comparison.html").stat().st_size > 10_000
    assert {folder.name for folder in (checkout / "sweep").glob("lr_*")} == {"lr_0", "lr_2e-4", "lr_1e-5"}
    # Once more: nothing is left to run.
    assert sweep(checkout, "--max_samples", "64").returncode == 0 and len(tried(checkout)) == 3


def test_a_failed_run_is_named_the_others_go_on_and_it_alone_is_run_again(checkout):
    (checkout / "broken_1e-05").touch()
    done = sweep(checkout)
    assert done.returncode == 1 and tried(checkout) == ["0.0", "0.0002", "1e-05"]
    assert "learning rate 1e-5 has no result, exit status 3" in done.stderr
    assert "error: 1 of 3 runs have no result\n  found:  learning rate 1e-5\n" in done.stderr
    assert "Without a result: 1e-5." in (checkout / "sweep/verdicts.md").read_text()
    (checkout / "broken_1e-05").unlink()
    done = sweep(checkout)
    assert done.returncode == 0 and tried(checkout)[3:] == ["1e-05"], done.stderr
    (former,) = (checkout / "sweep/failed").iterdir()
    assert former.name.endswith("_lr_1e-5") and "Without" not in (checkout / "sweep/verdicts.md").read_text()


def test_preflight_only_checks_every_run_and_hinders_no_sweep(checkout):
    for _ in range(2):  # the directories of a check are taken again
        done = sweep(checkout, PREFLIGHT="only")
        assert done.returncode == 0 and "nothing is trained" in done.stdout, done.stderr
    (checkout / "refused_1e-05").touch()
    done = sweep(checkout, PREFLIGHT="only")
    assert done.returncode == 1 and "1 of 3 runs cannot start\n  found:  learning rate 1e-5\n" in done.stderr
    assert not (checkout / "tried").exists()
    assert sweep(checkout).returncode == 0 and len(tried(checkout)) == 3
    assert not (checkout / "sweep/failed").exists()


def test_a_directory_of_another_sweep_is_refused(checkout):
    assert sweep(checkout, RATES="1e-5").returncode == 0
    for more, environment in ((["--max_samples", "8"], {}), ([], {"SEED": "7"}), ([], {"RECIPE": "tuned"})):
        done = sweep(checkout, *more, **environment)
        assert done.returncode == 1 and "another sweep is in this directory" in done.stderr
    assert len(tried(checkout)) == 2
    # More rates are the same sweep.
    assert sweep(checkout).returncode == 0 and tried(checkout)[2:] == ["0.0002"]


def test_a_folder_with_something_else_is_refused(checkout):
    (checkout / "sweep").mkdir()
    (checkout / "sweep/notes.txt").touch()
    done = sweep(checkout)
    assert done.returncode == 1 and "which holds something else" in done.stderr and not (checkout / "tried").exists()


def test_where_no_run_can_start_there_is_one_message(tmp_path):
    done = launch(SWEEP, tmp_path)  # no GPU
    assert done.returncode == 1 and done.stderr.count("too few GPUs") == 1
    assert "error: no run could be started" in done.stderr and not list((tmp_path / "run").glob("lr_*"))


@pytest.mark.parametrize("size, recipe", [("20b", "tuned"), ("120b", "tuned"), ("20b_a27", ""), ("tiny", "")])
def test_a_dry_run_prints_a_command_a_rate_and_touches_nothing(size, recipe, tmp_path):
    done = launch(SWEEP, tmp_path, f"{ROOT}/launch/train_grpo_{size}.sh", "--max_samples", "64", DRY_RUN="1")
    assert done.returncode == 0, done.stderr
    *runs, page = (shlex.split(line) for line in done.stdout.splitlines())
    assert page[1:] == ["-m", "rft.runs.sweep", str(tmp_path / "run")]
    assert [words[-1] for words in runs] == ["0", "1e-5", "2e-5", "4e-5", "1e-4"]
    for words in runs:
        assert words[:3] == ["env", f"RUN_DIR={tmp_path}/run/lr_{words[-1]}", f"RECIPE={recipe}"]
        assert words[-5:-1] == [f"{ROOT}/launch/train_grpo_{size}.sh", "--max_samples", "64", "--actor_learning_rate"]
    assert list(tmp_path.iterdir()) == []


def test_help_is_printed_and_nothing_else_done(tmp_path):
    for flag in ("--help", "-h"):
        done = launch(SWEEP, tmp_path, flag)
        assert done.returncode == 0 and "bash launch/sweep_lr.sh [LAUNCHER.sh]" in done.stdout and not done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "environment", "found"),
    [
        ([], {"RATES": "1e-5 fast"}, "fast in RATES"),
        ([], {"RATES": "1e-5,2e-5"}, "1e-5,2e-5 in RATES"),
        ([], {"RATES": "-1e-5"}, "-1e-5 in RATES"),
        ([], {"RATES": "nan"}, "nan in RATES"),
        ([], {"RATES": ""}, "RATES=''"),
        ([], {"RATES": "0 0.0"}, "RATES='0 0.0'"),
        (["nowhere.sh"], {}, "nowhere.sh"),
        (["launch/common.sh"], {}, "launch/common.sh"),
        (["--actor_learning_rate", "1e-5"], {}, "--actor_learning_rate"),
        (["--actor_learning_rate=1e-5"], {}, "--actor_learning_rate"),
        (["--generate_max", "5"], {}, "--generate_max 5"),
        ([], {"RECIPE": "none"}, "RECIPE=none"),
        ([], {"OUTPUT_ROOT": "/out"}, "OUTPUT_ROOT"),
        ([], {"METRICS_LOG_DIR": "/logs"}, "METRICS_LOG_DIR"),
    ],
)
def test_misuse_ends_before_anything_is_made(arguments, environment, found, tmp_path):
    done = launch(SWEEP, tmp_path, *arguments, **environment)
    assert done.returncode == 1 and not done.stdout
    (said,) = (line for line in done.stderr.splitlines() if line.startswith("  found:") and found in line)
    assert "  wanted: " in done.stderr and "  repair: " in done.stderr, said
    assert list(tmp_path.iterdir()) == []
