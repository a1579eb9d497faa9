"""launch/slurm.sh without a Slurm: the job scripts that it prints, and what it refuses."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launching import launch

from rft.record.flags import flag

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
SHELLCHECK = shutil.which(Path(sys.executable).with_name("shellcheck"))
PRESETS = {
    "slurm_h100": ("train_grpo_20b.sh", {}),
    "slurm_gh200": ("train_grpo_20b.sh", {"NODES": "2", "SBATCH_ACCOUNT": "ours", "SEED": "3", "RECIPE": "tuned"}),
    "slurm_3node_retriever": ("train_grpo_20b_search.sh", {"CORPUS": "/data/wiki-18.jsonl", "SBATCH_EXCLUDE": "n7,n9"}),
}


def slurm_sh(tmp_path, *words, **environment):
    environment = {"CLUSTER": "", "RFT_STACK": "", "CACHE_ROOT": "", "RUN_DIR": "/run_dir"} | environment
    return launch(ROOT / "launch/slurm.sh", tmp_path, *words, **environment)


def dry_run(tmp_path, preset, *options):
    launcher, environment = PRESETS[preset]
    words = ["submit", "--dry-run", preset, ROOT / "launch" / launcher, *options]
    done = slurm_sh(tmp_path, *words, **environment)
    assert done.returncode == 0, done.stderr
    text = done.stdout.replace(str(tmp_path), "HERE").replace(str(ROOT), "ROOT")
    text = re.sub(
        "^SLURM_PROGRAMS=.*", "SLURM_PROGRAMS=''", text, flags=re.MULTILINE
    )  # also where a Slurm is installed
    return text.replace("ROOT/.venv/", "ROOT/.venv-gpu/")


@pytest.mark.parametrize("preset", PRESETS)
def test_job_script_is_golden(preset, tmp_path):
    """After a change that is meant: RFT_WRITE_GOLDEN=1 python -m pytest tests/shell -k golden, and read the diff."""
    found = dry_run(tmp_path, preset)
    if preset != "slurm_h100":  # one of them with its functions, which are the same
        found = found.partition("die () \n")[0]
    golden = GOLDEN / f"{preset}.txt"
    if flag("RFT_WRITE_GOLDEN"):
        golden.write_text(found)
    assert found == golden.read_text()
    assert sorted(tmp_path.iterdir()) == [], "a dry run leaves nothing"


@pytest.mark.parametrize("preset", PRESETS)
def test_job_script_stands_alone(preset, tmp_path):
    """Slurm runs a copy of it from its spool."""
    script = tmp_path / "job.sh"
    script.write_text(dry_run(tmp_path, preset))
    code = "\n".join(line for line in script.read_text().splitlines() if not line.startswith("#"))
    assert "BASH_SOURCE" not in code and "source " not in code and "$0" not in code
    checked = subprocess.run([SHELLCHECK, script], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_secrets_go_by_name(tmp_path):
    words = ["submit", "--dry-run", "h100", ROOT / "launch/train_grpo_20b.sh"]
    done = slurm_sh(tmp_path, *words, WANDB_API_KEY="s3cret", HF_TOKEN="t0ken")
    assert "#SBATCH --export=WANDB_API_KEY,HF_TOKEN\n" in done.stdout
    assert "s3cret" not in done.stdout and "t0ken" not in done.stdout


@pytest.mark.parametrize(
    ("words", "environment", "message"),
    [
        ("fly", {}, "error: no such action\n  found:  fly"),
        ("submit", {}, "error: cluster or launcher is missing"),
        ("submit nowhere LAUNCHER", {}, "error: no such cluster\n  found:  nowhere\n  wanted: one of 3node_retriever"),
        ("submit h100 /nowhere.sh", {}, "error: no such launcher\n  found:  /nowhere.sh"),
        ("submit h100 LAUNCHER", {"NODES": "two"}, "error: NODES is no number"),
        ("submit h100 LAUNCHER", {"RETRIEVER_PLACE": "apart"}, "error: too few nodes\n  found:  NODES=1"),
        ("submit h100 LAUNCHER", {"RETRIEVER_PLACE": "moon"}, "error: no such place"),
        ("submit h100 LAUNCHER", {"SBATCH_TIMELIMIT": "15:00"}, "error: the time limit leaves no time to train"),
        ("submit h100 LAUNCHER", {"SBATCH_TIMELIMIT": "soon"}, "error: the time limit cannot be read"),
        ("submit 3node_retriever LAUNCHER", {}, "error: the retriever has no corpus"),
        ("submit h100 LAUNCHER", {"RUN_DIR": "/a b"}, "error: unusable name of a folder\n  found:  /a b/slurm"),
    ],
)
def test_what_cannot_be_submitted_is_refused(words, environment, message, tmp_path):
    words = [str(ROOT / "launch/train_grpo_20b.sh") if word == "LAUNCHER" else word for word in words.split()]
    done = slurm_sh(tmp_path, *words, **environment)
    assert done.returncode == 1 and message in done.stderr, done.stderr
    assert sorted(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("sbatch") is not None, reason="a Slurm is installed here")
@pytest.mark.parametrize("words", [["submit", "h100", ROOT / "launch/train_grpo_20b.sh"], ["status", "/nowhere"]])
def test_a_machine_without_slurm_is_named(words, tmp_path):
    done = slurm_sh(tmp_path, *words)
    assert done.returncode == 1 and "error: no Slurm here\n" in done.stderr, done.stderr
    assert sorted(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("90", 5400),
        ("30:10", 1810),
        ("2:00:05", 7205),
        ("1-2", 93600),
        ("1-2:03", 93780),
        ("1-02:03:04", 93784),
        ("08:09:00", 29340),
    ],
)
def test_time_limits_are_read_as_slurm_reads_them(limit, seconds):
    """https://slurm.schedmd.com/sbatch.html, --time."""
    script = f'ROOT={ROOT}; . "$ROOT/launch/usage.sh"; . "$ROOT/launch/slurm/preset.sh"; seconds_of {limit}'
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout == f"{seconds}\n"
