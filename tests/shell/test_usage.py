"""What every script answers to --help, and to a variable that is neither yes nor no."""

import os
import subprocess

import pytest
from launching import ROOT, launch

LAUNCHERS = sorted((ROOT / "launch").glob("train_*.sh"))
SCRIPTS = [*LAUNCHERS, *(ROOT / name for name in ("launch/spare.sh", "launch/resume.sh", "preflight_lr.sh"))]


def helped(script, place, *arguments):
    """What a script prints that is asked for help where there is no tool but a shell's own."""
    done = launch(script, place, *arguments, PATH="/usr/bin:/bin")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert list(place.iterdir()) == []
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=[path.name for path in SCRIPTS])
def test_help_is_the_head_of_the_script_and_touches_nothing(script, tmp_path):
    line = script.read_text().splitlines()[1]
    shown = helped(script, tmp_path, "-h")
    assert shown.splitlines()[0] == line.removeprefix("# ") and "shellcheck" not in shown
    assert f"bash {script.relative_to(ROOT)}" in shown
    assert helped(script, tmp_path, "--help") == shown


def test_a_launchers_help_names_the_environment_and_may_come_last(tmp_path):
    shown = helped(ROOT / "launch/train_grpo_tiny.sh", tmp_path, "--seed", "1", "--help")
    assert all(name in shown for name in ("RUN_DIR", "DRY_RUN=1", "PREFLIGHT=only", "RESUMABLE=0", "DATA_ROOT"))


def test_help_of_a_job_is_the_jobs(tmp_path):
    done = launch(ROOT / "launch/spare.sh", tmp_path, "run", "job", "python", "--help", SPARE="host", DRY_RUN="on")
    assert done.returncode == 0 and done.stdout.endswith("python --help\n")


def test_the_patch_tool_has_help_too():
    done = subprocess.run(["bash", ROOT / "apply_patches.sh", "-h"], capture_output=True, text=True, check=True)
    assert "apply" in done.stdout


@pytest.mark.parametrize("yes", ["1", "true", "YES", "On"])
def test_a_dry_run_may_be_asked_for_in_every_way(yes, tmp_path):
    done = launch(ROOT / "launch/train_grpo_tiny.sh", tmp_path, DRY_RUN=yes, RESUMABLE="off")
    assert done.returncode == 0 and "openrlhf.cli.train_ppo_ray" in done.stdout and "--disable_ds_ckpt" in done.stdout
    assert not (tmp_path / "run").exists()


FLAGS = ("DRY_RUN", "RESUMABLE", "PREFLIGHT", "ALLOW_CHANGED", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@pytest.mark.parametrize("name", FLAGS)
def test_neither_yes_nor_no_is_refused_before_anything_is_made(name, tmp_path):
    done = launch(ROOT / "launch/train_grpo_tiny.sh", tmp_path, **{name: "perhaps"})
    assert done.returncode == 1 and not done.stdout and list(tmp_path.iterdir()) == []
    assert f"found:  {name}=perhaps" in done.stderr and "wanted: 1, true, yes, on" in done.stderr
    assert ("or only" in done.stderr) == (name == "PREFLIGHT")
    assert f"unset {name}" in done.stderr


@pytest.mark.parametrize("more", [["--no_such_option"], ["--generate_max", "1"], ["--async_train"]])
def test_a_dry_run_refuses_what_the_trainer_would(more, tmp_path):
    done = launch(ROOT / "launch/train_grpo_20b.sh", tmp_path, *more, DRY_RUN="1")
    assert done.returncode == 2 and done.stdout == "" and "\nerror: " in f"\n{done.stderr}", done.stderr
    assert os.listdir(tmp_path) == []
