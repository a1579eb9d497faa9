"""Every shell script is strict, launchers print the command that they would run; `make lint` has shellcheck."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from rft.record.flags import flag

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
SCRIPTS = sorted([ROOT / ".ci/run", *ROOT.glob("*.sh"), *ROOT.glob("[a-z]*/**/*.sh")])
SCRIPTS = [s for s in SCRIPTS if s.relative_to(ROOT).parts[0] != "runs"]
LAUNCHERS = [*sorted((ROOT / "launch").glob("train_*.sh")), ROOT / "launch/sft_20b.sh"]
RECIPES = sorted(recipe.stem for recipe in (ROOT / "launch/recipes").glob("*.env"))
# Each launcher as it is, and with the other recipes where it takes any.
GOLDEN_RUNS = [(launcher, None) for launcher in LAUNCHERS]
GOLDEN_RUNS += [(one, r) for one in LAUNCHERS if "\nuse_recipe\n" in one.read_text() for r in RECIPES if r != "a26"]


def names(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("script", SCRIPTS, ids=names(SCRIPTS))
def test_script_is_strict(script):
    text = script.read_text()
    sourced = not text.startswith("#!")
    assert sourced or "set -Eeuo pipefail" in text or "/common.sh" in text


def files_under(folder):
    return {(path, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def launch(launcher, tmp_path, *arguments, **environment):
    """The finished process of a launcher in a checkout without .venv, where it leaves nothing."""
    checkout = tmp_path / "checkout"
    if not checkout.exists():
        for folder in ("launch", "rft"):
            shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__"))
    before = files_under(checkout)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
        "CLUSTER": "8xh100",
    } | environment
    result = subprocess.run(
        ["bash", checkout / "launch" / launcher.name, *arguments],
        env=environment | {"RFT_STACK": "cpu", "RUN_DIR": "/run_dir"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert files_under(checkout) == before, "a dry run, or one that is refused, must not touch anything"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkout"]
    return result


def dry_run(launcher, tmp_path, *arguments, **environment):
    """Lines that a dry run prints, with the checkout's place written as ROOT, and its environment as users call it."""
    result = launch(launcher, tmp_path, *arguments, DRY_RUN="1", **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.replace(str(tmp_path / "checkout"), "ROOT").replace("ROOT/.venv-cpu/", "ROOT/.venv/")


def test_what_is_missing_or_misspelt_is_said_before_the_set_up(tmp_path):
    launcher = ROOT / "launch/train_grpo_20b.sh"
    for arguments, status, said in (
        ([], 1, "error: too few GPUs\n  found:  0 here (RFT_STACK=cpu)\n  wanted: 8\n"),
        (["--actor_num_gpus_per_node=2", "--vllm_num_engines=2"], 1, "  wanted: 2\n"),
        (["--generate_max", "8192"], 2, "did you mean --generate_max_len?"),
    ):
        result = launch(launcher, tmp_path, *arguments)
        assert result.returncode == status and said in result.stderr and not result.stdout, result.stderr


def test_a_broken_environment_hinders_no_launch(tmp_path):
    """The set-up repairs it, so what comes before the set-up must get there."""
    launcher = ROOT / "launch/train_grpo_20b.sh"
    wanted = dry_run(launcher, tmp_path)
    python = tmp_path / "checkout/.venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 127\n")
    python.chmod(0o755)
    assert dry_run(launcher, tmp_path) == wanted


@pytest.mark.parametrize("launcher, recipe", GOLDEN_RUNS, ids=[f"{one.stem}-{r}" for one, r in GOLDEN_RUNS])
def test_dry_run_is_golden(launcher, recipe, tmp_path):
    """After a change that is meant: RFT_WRITE_GOLDEN=1 python -m pytest tests/shell, and read the diff."""
    golden = GOLDEN / f"{launcher.stem}{f'.{recipe}' if recipe else ''}.txt"
    found = dry_run(launcher, tmp_path, **({"RECIPE": recipe} if recipe else {}))
    if flag("RFT_WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(found)
    assert golden.exists(), f"no {golden}; make it: RFT_WRITE_GOLDEN=1 .venv/bin/python -m pytest tests/shell -k golden"
    assert found == golden.read_text()


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=names(LAUNCHERS))
def test_dry_run_takes_overrides_last(launcher, tmp_path):
    rate = "--learning_rate" if "sft" in launcher.stem else "--actor_learning_rate"
    lines = dry_run(launcher, tmp_path, rate, "0", "--wandb_run_name", "a b").splitlines()
    training = [shlex.split(line) for line in lines if "openrlhf.cli.train_" in line]
    assert len(training) == 1
    assert training[0][-4:] == [rate, "0", "--wandb_run_name", "a b"]
