"""Every shell script is strict, launchers print the command that they would run; `make lint` has shellcheck."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
SCRIPTS = sorted([ROOT / ".ci/run", *ROOT.glob("*.sh"), *ROOT.glob("[a-z]*/**/*.sh")])
SCRIPTS = [s for s in SCRIPTS if s.relative_to(ROOT).parts[0] != "runs"]
LAUNCHERS = sorted((ROOT / "launch").glob("train_*.sh"))


def names(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("script", SCRIPTS, ids=names(SCRIPTS))
def test_script_is_strict(script):
    text = script.read_text()
    sourced = not text.startswith("#!")
    assert sourced or "set -Eeuo pipefail" in text or "/common.sh" in text


def files_under(folder):
    return {(path, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def dry_run(launcher, tmp_path, *arguments):
    """Lines that a dry run prints in a checkout without .venv, with the checkout's place written as ROOT."""
    checkout = tmp_path / "checkout"
    if not checkout.exists():
        shutil.copytree(ROOT / "launch", checkout / "launch")
    before = files_under(checkout)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    environment |= {"DRY_RUN": "1", "RFT_STACK": "cpu", "RUN_DIR": "/run_dir"}
    result = subprocess.run(
        ["bash", checkout / "launch" / launcher.name, *arguments],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert files_under(checkout) == before, "a dry run must not touch anything"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkout"]
    return result.stdout.replace(str(checkout), "ROOT")


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=names(LAUNCHERS))
def test_dry_run_is_golden(launcher, tmp_path):
    """After a change that is meant: RFT_WRITE_GOLDEN=1 python -m pytest tests/shell, and read the diff."""
    golden = GOLDEN / f"{launcher.stem}.txt"
    found = dry_run(launcher, tmp_path)
    if os.environ.get("RFT_WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(found)
    assert golden.exists(), f"no {golden}; make it: RFT_WRITE_GOLDEN=1 .venv/bin/python -m pytest tests/shell -k golden"
    assert found == golden.read_text()


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=names(LAUNCHERS))
def test_dry_run_takes_overrides_last(launcher, tmp_path):
    lines = dry_run(launcher, tmp_path, "--actor_learning_rate", "0", "--wandb_run_name", "a b").splitlines()
    training = [shlex.split(line) for line in lines if "openrlhf.cli.train_ppo_ray" in line]
    assert len(training) == 1
    assert training[0][-4:] == ["--actor_learning_rate", "0", "--wandb_run_name", "a b"]
