"""Record an attempt: question and prediction before the run, results after it.

    .venv/bin/python -m rft.runs.attempt start 26 grpo-20b-em --question "…" --prediction "…"
    .venv/bin/python -m rft.runs.attempt finish 26 runs/train_grpo_20b/20260101T000000Z [--against RUN]

`start` makes the branch `attempt-26-grpo-20b-em` and the annotated tag `attempt-26-start`, whose message keeps question
and prediction. `finish` puts an entry on top of research_log.md; you add lessons, and commit. Neither needs a
network, and nothing is pushed. Exit status 2 is bad input, with one message; nothing has changed then.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from rft.options.recorded import read_manifest
from rft.runs.attempt.entry import entry

LOG = "research_log.md"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m rft.runs.attempt",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    begin = commands.add_parser("start", help="branch and tag from the current commit")
    begin.add_argument("number", type=int)
    begin.add_argument("slug", help="short description for the branch: lower case, digits, hyphens")
    begin.add_argument("--question", required=True, help="what the attempt is to find out")
    begin.add_argument("--prediction", required=True, help="what you expect, and why, before it runs")
    end = commands.add_parser("finish", help=f"write the entry in {LOG}")
    end.add_argument("number", type=int)
    end.add_argument("run", type=Path, help="run directory")
    end.add_argument("--against", type=Path, metavar="RUN", help="compare options and evaluations with this run's")
    args = parser.parse_args(argv)
    try:
        root = checkout()
        if args.command == "start":
            start(root, args.number, args.slug, args.question, args.prediction)
        else:
            finish(root, args.number, args.run, args.against)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def start(root: Path, number: int, slug: str, question: str, prediction: str) -> None:
    """Branch `attempt-XX-slug` and annotated tag `attempt-XX-start` at the present commit, both or neither.

    Raises ValueError: number or words are unusable, the tree is dirty, the attempt exists, or git refuses.
    """
    if number < 0:
        raise ValueError(f"found attempt number {number}; wanted 0 or more")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug) or slug == "start":
        raise ValueError(f"found description {slug!r}; wanted lower case, digits and hyphens, as in grpo-20b-em")
    words = {"question": one_paragraph(question), "prediction": one_paragraph(prediction)}
    for name, text in words.items():
        if not text:
            raise ValueError(f"found an empty {name}; wanted a sentence; pass it with --{name}")
    if changed := git(root, "status", "--porcelain", "--untracked-files=all").splitlines():
        shown = ", ".join(line[3:] for line in changed[:10]) + (", …" if len(changed) > 10 else "")
        raise ValueError(
            f"found {len(changed)} changed files that no commit holds: {shown}; wanted a clean tree, so that the tag "
            "is what will run; commit them (git add, git commit), or put them aside (git stash --include-untracked)"
        )
    if taken := git(root, "for-each-ref", "--format=%(refname)", *references(number)).split():
        raise ValueError(f"found {' and '.join(taken)}; wanted a new attempt; choose another number than {number}")
    branch, tag = f"{prefix(number)}-{slug}", f"{prefix(number)}-start"
    message = f"{branch}\n\n{json.dumps(words, indent=1, ensure_ascii=False)}\n"
    git(root, "tag", "--annotate", "--file=-", tag, stdin=message)
    try:
        git(root, "switch", "--quiet", "--create", branch)
    except ValueError:
        git(root, "tag", "--delete", tag)
        raise
    print(f"branch {branch}, tag {tag} at {git(root, 'rev-parse', '--short', 'HEAD').strip()}")


def finish(root: Path, number: int, run: Path, against: Path | None) -> None:
    """Insert the attempt's entry above the newest one of the log; the file is replaced in one step, or stays as it was.

    Raises ValueError: no such attempt, it has an entry already, the run is older than the attempt, or a run directory
    cannot be read.
    """
    log, tag = root / LOG, f"{prefix(number)}-start"
    branch, words = recorded(root, number)
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    heads = [place for place, line in enumerate(lines) if line.startswith("## ")]
    for place in heads:
        if re.search(rf"\b{prefix(number)}-", lines[place]):
            raise ValueError(
                f"{LOG}, line {place + 1}: found an entry of attempt {number}; wanted one per attempt; edit it there, "
                "or remove it to have it written again"
            )
    require_begun_after(root, tag, run)
    text = entry(root, branch, tag, words, run, against)
    at = heads[0] if heads else len(lines)
    above = "".join(lines[:at])
    if not heads:
        above = above.rstrip("\n") + "\n\n"
    replace(log, above + text + ("\n" if heads else "") + "".join(lines[at:]))
    print(f"{LOG}: entry of {branch} written; add the lessons and the next step, then commit it")


def recorded(root: Path, number: int) -> tuple[str, dict[str, str]]:
    """(branch, question and prediction) of the attempt's tag. Raises ValueError where there is no such tag."""
    tag = f"{prefix(number)}-start"
    contents = git(root, "for-each-ref", "--format=%(contents:subject)%0a%(contents:body)", f"refs/tags/{tag}")
    if not contents.strip():
        raise ValueError(
            f"found no tag {tag}; wanted an attempt that was started; .venv/bin/python -m rft.runs.attempt start"
        )
    branch, _, body = contents.partition("\n")
    try:
        words = json.loads(body)
        return branch, {"question": words["question"], "prediction": words["prediction"]}
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"found no question and prediction in the message of tag {tag}; wanted one that `attempt start` made; "
            "write this attempt's entry by hand"
        ) from None


def require_begun_after(root: Path, tag: str, run: Path) -> None:
    """Raises ValueError where the run's first start is older than the tag: its outcome could have been known then."""
    manifests = [read_manifest(run), *(json.loads(file.read_bytes()) for file in run.glob("run_[0-9]*.json"))]
    try:
        begun = min(datetime.fromisoformat(manifest["started"]).astimezone(UTC) for manifest in manifests)
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"{run / 'run.json'}: found no time in `started`; wanted the manifest that the launcher wrote"
        ) from None
    seconds = int(git(root, "for-each-ref", "--format=%(taggerdate:unix)", f"refs/tags/{tag}"))
    tagged = datetime.fromtimestamp(seconds, UTC)
    if begun < tagged:
        raise ValueError(
            f"{run}: found a run that began at {begun:%Y-%m-%d %H:%M:%S} UTC, before {tag} ({tagged:%Y-%m-%d %H:%M:%S} "
            "UTC); wanted one that began after its prediction was on record; finish the attempt with such a run"
        )


def prefix(number: int) -> str:
    """`attempt-07`."""
    return f"attempt-{number:02d}"


def references(number: int) -> list[str]:
    """Patterns of the branches, remote ones too, and the tag that an attempt owns."""
    name = prefix(number)
    return [f"refs/heads/{name}-*", f"refs/heads/{name}", f"refs/remotes/*/{name}-*", f"refs/tags/{name}-start"]


def one_paragraph(text: str) -> str:
    """The words of a text in one line, so that it cannot break the log's headings."""
    return " ".join(text.split())


def checkout() -> Path:
    """The checkout of the working directory. Raises ValueError outside one that has a research log."""
    root = Path(git(Path.cwd(), "rev-parse", "--show-toplevel").rstrip("\n"))
    if not (root / LOG).is_file():
        raise ValueError(f"found no {LOG} in {root}; wanted the checkout that keeps the attempts; run it there")
    return root


def replace(path: Path, text: str) -> None:
    """Write a complete file: a copy beside it takes its place, mode kept."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        shutil.copymode(path, partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def git(root: Path, *command: str, stdin: str | None = None) -> str:
    """Output of a git command. Raises ValueError with git's own message."""
    result = subprocess.run(["git", *command], cwd=root, input=stdin, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ValueError(f"git {command[0]}: {result.stderr.strip() or f'exit status {result.returncode}'}")
    return result.stdout
