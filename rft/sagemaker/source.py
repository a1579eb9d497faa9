"""What a job runs: the commit of this checkout, and the launcher's command, as one archive."""

import io
import json
import os
import re
import subprocess
import tarfile
from pathlib import Path

from rft.runs.launched import NAMES, PATHS, without_key
from rft.sagemaker.jobs import LOG
from rft.sagemaker.places import SCHEME

COMMAND = "sagemaker_command.json"  # in the archive: `launcher`, `options`, `environment`, `commit`
SECRET = re.compile(r"hf_[A-Za-z0-9]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16}|sk-[A-Za-z0-9_-]{20,}")
READ = ("MODEL", "MODEL_ROOT", "DATA_ROOT", "CORPUS", "INDEX_DIR")
OURS = (*(name for name in PATHS if name not in READ), "WANDB_DIR")


def archive(root: Path, launcher: str, options: list[str]) -> bytes:
    """A tar.gz of the commit that is checked out, with the command in it.

    Of the environment go the variables that a launcher reads (`rft.runs.launched`), none with a key.

    Raises:
        ValueError: no such launcher in the commit, changes that no commit holds, a key or a place of this machine in
            the command.
    """
    name = Path(launcher).as_posix().removeprefix("./")
    # Each submission adds a line to the list of jobs.
    changed = git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", f":(exclude){LOG}")
    if changed:
        first = changed.decode().splitlines()[0].strip()
        raise ValueError(f"found changes that no commit holds ({first}), wanted none; commit them")
    if (
        not name.startswith(("launch/train_", "launch/sft_"))
        or git(root, "ls-tree", "--name-only", "HEAD", name).decode().strip() != name
    ):
        raise ValueError(f"found {launcher!r}, wanted a launcher of this commit, launch/train_….sh; correct it")
    content = json.dumps(
        command_of(name, options) | {"commit": git(root, "rev-parse", "HEAD").decode().strip()}, indent=1
    )
    buffer, member = io.BytesIO(), tarfile.TarInfo(COMMAND)
    member.size = len(content.encode())
    with tarfile.open(fileobj=tracked(root)) as commit, tarfile.open(fileobj=buffer, mode="w:gz") as made:
        for each in commit:
            made.addfile(each, commit.extractfile(each) if each.isfile() else None)
        made.addfile(member, io.BytesIO(content.encode()))
    return buffer.getvalue()


def command_of(launcher: str, options: list[str]) -> dict:
    """`launcher`, `options` and `environment` as they go into the archive.

    Raises:
        ValueError: a key, or a place of this machine, is among them.
    """
    # The stack is the image's.
    environment = {name: os.environ[name] for name in NAMES if os.environ.get(name) and name != "RFT_STACK"}
    for word in [*options, *(f"{name}={value}" for name, value in environment.items())]:
        if SECRET.search(word) or without_key(word) != word:
            place = word.partition("=")[0] if "=" in word else "the options"
            raise ValueError(f"found a key in {place}, wanted none: a command is stored where others read; take it out")
    for name in sorted(environment.keys() & set(OURS)):
        raise ValueError(f"found {name}={environment[name]}, wanted none: a job has places of its own; unset {name}")
    for name in sorted(environment.keys() & set(READ)):
        if not environment[name].startswith(SCHEME):
            found = f"{name}={environment[name]}"
            raise ValueError(f"found {found}, wanted a place that the job can read, {SCHEME}BUCKET/…; upload it there")
    return {"launcher": launcher, "options": options, "environment": environment}


def tracked(root: Path) -> io.BytesIO:
    """The commit that is checked out, as a tar file."""
    return io.BytesIO(git(root, "archive", "--format=tar", "HEAD"))


def git(root: Path, *command: str) -> bytes:
    """What a git command prints. Raises ValueError with its last line where it fails."""
    done = subprocess.run(["git", *command], cwd=root, capture_output=True)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        raise ValueError(
            f"found git {command[0]} failing ({said[-1]}), wanted a checkout with a commit; clone the repository"
        )
    return done.stdout
