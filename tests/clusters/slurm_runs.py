"""Runs that launch/slurm.sh has submitted, as tests see them."""

import re
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def submit(slurm, *options: str, launcher: Path = HERE / "toy_launcher.sh", **environment: str) -> tuple[Path, str]:
    """Submit a launcher, by default the toy; (run directory, job id)."""
    run = slurm.work / f"run{len(list(slurm.work.glob('run*')))}"
    done = slurm_sh(slurm, "submit", HERE / "toy.env", launcher, *options, run=run, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return run, re.search(r"^job (\d+);", done.stdout, re.MULTILINE)[1]


def slurm_sh(slurm, *words, run=None, **environment):
    environment = {"SEED": "7"} | environment | ({"RUN_DIR": str(run)} if run else {})
    return slurm.run("bash", ROOT / "launch/slurm.sh", *words, **environment)


def jobs_of(run: Path) -> list[str]:
    rows = [line.split() for line in (run / "slurm/jobs.log").read_text().splitlines()]
    return [row[1] for row in rows if row[2] == "submitted"] + [row[3] for row in rows if row[2] == "submits"]


def trained(run: Path, job: str, least: int) -> None:
    """Wait until the run has taken that many steps."""
    deadline = time.monotonic() + 60
    while steps(run) < least:
        assert time.monotonic() < deadline and " ends with status " not in said(run, job), said(run, job)
        time.sleep(0.1)


def said(run: Path, job: str) -> str:
    log = run / f"slurm/{job}.log"
    return log.read_text() if log.exists() else ""


def steps(run: Path) -> int:
    file = run / "steps"
    return int(file.read_text() or 0) if file.exists() else 0
