"""An edit repository: upstream's files at the tag `base`, then a commit a patch. What git is asked, and how."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from .diff import FileDiff, header_text, parse_patch
from .errors import NOT_WANTED, USAGE, OverlayError
from .headers import commit_message, fields, lint, normalise, slug
from .series import Package, sha256

REBASE = ".git/rft-rebase.json"  # in the repository of a rebase: how far it is

# Output must not depend on the author's configuration.
DIFF = [
    *("diff-tree", "-p", "-r", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", "--text"),
    *("--no-color", "--src-prefix=a/", "--dst-prefix=b/", "--unified=3", "--inter-hunk-context=0"),
    *("--diff-algorithm=myers", "--indent-heuristic"),
]


def git(folder: Path, *arguments: str, data: bytes | None = None) -> bytes:
    """Run git in `folder` without anybody's configuration; a failure raises OverlayError (exit 2) with git's words."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "LC_ALL": "C"}
    for role in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{role}_NAME": "rft overlay", f"GIT_{role}_EMAIL": "overlay@localhost"}
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, input=data, capture_output=True, env=environment, check=False)
    if done.returncode:
        raise OverlayError(USAGE, f"git {arguments[0]} failed in {folder}", found=done.stderr.decode().strip())
    return done.stdout


def make_repository(place: Path, files: dict[str, bytes | None], title: str, version: str) -> None:
    """A repository in the folder `place` whose only commit, tagged `base`, holds `files` (None: no such file)."""
    place.mkdir(parents=True, exist_ok=True)
    git(place, "init", "-q", "-b", "overlay")
    git(place, "config", "core.autocrlf", "false")
    git(place, "config", "rft.version", version)
    (place / ".git/info").mkdir(exist_ok=True)
    (place / ".git/info/attributes").write_text("* -text\n")
    (place / ".git/info/exclude").write_text("__pycache__/\n")
    write_tree(place, files)
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", title)
    git(place, "tag", "base")


def commit_patch(place: Path, name: str, data: bytes, tree: dict[str, bytes | None]) -> None:
    """Commit the files that a patch leads to, under the header of the patch file `data`."""
    write_tree(place, tree)
    git(place, "add", "-A")
    message = commit_message(header_text(data), name.removesuffix(".patch"))
    git(place, "commit", "-q", "-F", "-", data=message.encode())


def write_tree(place: Path, tree: dict[str, bytes | None]) -> None:
    """Write files below `place`, and remove those that are None."""
    for path, data in tree.items():
        if data is None:
            (place / path).unlink(missing_ok=True)
        else:
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(data)


def read_commits(folder: Path, patches: Path) -> dict[str, bytes]:
    """File name -> content of the patch that each commit after `base` makes.

    Raises OverlayError (exit 1) with every fault of every commit.
    """
    commits = _commits(folder)
    contents: dict[str, bytes] = {}
    problems: list[str] = []
    names = _known_names(patches)
    for commit in commits:
        diff = git(folder, *DIFF, f"{commit}^", commit)
        header, name = normalise(git(folder, "log", "-1", "--format=%B", commit).decode())
        subject = (fields(header)[0].get("Subject") or [""])[0]
        name = f"{name}.patch" if name else names.get(subject) or f"{slug(subject)}.patch"
        if name in contents:
            problems.append(f"{commit[:10]}: a second patch named {name}; give it another Subject or Patch-Name")
        if not diff:
            problems.append(f"{name}: commit {commit[:10]} changes nothing")
        problems += [f"{name}: {problem}" for problem in lint(header)]
        contents[name] = header.encode() + b"\n" + diff
    if problems:
        raise OverlayError(
            NOT_WANTED,
            "\n  ".join(["some commits cannot become patches", *problems]),
            repair=f"git -C {folder} rebase -i base   (reword, edit)",
        )
    return contents


def all_diffs(contents: dict[str, bytes]) -> list[FileDiff]:
    """The change of every file, patch by patch."""
    return [diff for name, data in contents.items() for diff in parse_patch(data, name)]


def changed_files(folder: Path, package: Package) -> dict[str, dict]:
    """The rows of lock.json for every file that the commits of `folder` change: those of base and HEAD, and by whom."""
    files = {}
    for path in sorted({diff.path for diff in all_diffs(package.patches)}):
        pristine, wanted = (git_file(folder, revision, path) for revision in ("base", "HEAD"))
        if package.patched(path, pristine) != wanted:
            raise OverlayError(NOT_WANTED, f"the commits do not lead from base to HEAD in {path}; is base an ancestor?")
        by = [name for name, _ in package.diffs[path]]
        if pristine == wanted:
            raise OverlayError(
                NOT_WANTED,
                f"the changes to {path} cancel out",
                found=f"as upstream ships it after {', '.join(by)}",
                wanted="a change, or patches that leave the file alone",
                repair=f"git -C {folder} rebase -i base   (edit), then the same command again",
            )
        files[path] = {"pristine": sha256(pristine), "patched": sha256(wanted), "by": by}
    return files


def _commits(folder: Path) -> list[str]:
    """Commits after `base`, oldest first."""
    if not git(folder, "tag", "--list", "base").strip():
        raise OverlayError(
            USAGE,
            f"{folder} has no tag base",
            wanted="upstream's files, tagged",
            repair="bash apply_patches.sh edit PACKAGE",
        )
    require_committed(folder)
    if git(folder, "rev-list", "--merges", "base..HEAD").strip():
        raise OverlayError(NOT_WANTED, f"{folder} has merge commits after base", wanted="one line of commits")
    if git(folder, "rev-list", "base", "--not", "HEAD").strip():
        raise OverlayError(NOT_WANTED, f"{folder}: HEAD does not descend from the tag base")
    commits = git(folder, "rev-list", "--reverse", "base..HEAD").decode().split()
    if not commits:
        raise OverlayError(NOT_WANTED, f"{folder} has no commit after base", wanted="one commit per patch")
    return commits


def require_committed(folder: Path) -> None:
    """Raises OverlayError (exit 1) where files differ from HEAD, or are not in it."""
    if changed := git(folder, "status", "--porcelain").decode().rstrip():
        names = "; ".join(changed.splitlines())
        raise OverlayError(NOT_WANTED, f"uncommitted work in {folder}", names, "none", f"git -C {folder} status")


def _known_names(patches: Path) -> dict[str, str]:
    """Subject -> file name of the patches that exist, so that a reworded series keeps its names."""
    result = {}
    for path in sorted(patches.glob("*/*.patch")):
        for subject in fields(header_text(path.read_bytes()))[0].get("Subject", []):
            result[subject] = path.name
    return result


def git_file(folder: Path, revision: str, path: str) -> bytes | None:
    """A file of a revision; None where it has none."""
    if not git(folder, "ls-tree", revision, "--", path).strip():
        return None
    return git(folder, "cat-file", "blob", f"{revision}:{path}")
