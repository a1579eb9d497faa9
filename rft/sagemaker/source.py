"""What a job runs: the commit of this checkout, and the launcher's command, as one archive."""

import io
import json
import os
import re
import subprocess
import tarfile
from pathlib import Path

from rft.runs.launched import NAMES, without_key

COMMAND = "sagemaker_command.json"  # in the archive: `launcher`, `options`, `environment`, `commit`
SECRET = re.compile(r"hf_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16}|sk-[A-Za-z0-9_-]{20,}")


def archive(root: Path, launcher: str, options: list[str]) -> bytes:
    """A tar.gz of the commit that is checked out, with the command in it.

    Of the environment go the variables that a launcher reads (`rft.runs.launched`), none with a key.

    Raises:
        ValueError: no such launcher in the commit, changes that no commit holds, a key among the options.
    """
    name = Path(launcher).as_posix().removeprefix("./")
    changed = git(root, "status", "--porcelain", "--untracked-files=no").decode().splitlines()
    if changed:
        raise ValueError(f"found changes that no commit holds ({changed[0].strip()}), wanted none; commit them")
    if (
        not name.startswith("launch/train_")
        or git(root, "ls-tree", "--name-only", "HEAD", name).decode().strip() != name
    ):
        raise ValueError(f"found {launcher!r}, wanted a launcher of this commit, launch/train_….sh; correct it")
    words = [without_key(word) for word in options]
    for word in words:
        if SECRET.search(word):
            raise ValueError(f"found a key in {word[:12]}…, wanted none in a command; set it in the job's secrets")
    command = {
        "launcher": name,
        "options": words,
        "environment": {each: os.environ[each] for each in NAMES if os.environ.get(each)},
        "commit": git(root, "rev-parse", "HEAD").decode().strip(),
    }
    content, buffer = json.dumps(command, indent=1).encode(), io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(git(root, "archive", "--format=tar", "HEAD"))) as tracked,
        tarfile.open(fileobj=buffer, mode="w:gz") as made,
    ):
        for member in tracked:
            made.addfile(member, tracked.extractfile(member) if member.isfile() else None)
        member = tarfile.TarInfo(COMMAND)
        member.size = len(content)
        made.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def git(root: Path, *command: str) -> bytes:
    """What a git command prints. Raises ValueError with its last line where it fails."""
    done = subprocess.run(["git", *command], cwd=root, capture_output=True)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        raise ValueError(
            f"found git {command[0]} failing ({said[-1]}), wanted a checkout with a commit; clone the repository"
        )
    return done.stdout
