"""edit, new, finish: patches are written in a throwaway git repository, one commit per patch, tag `base` = pristine."""

from __future__ import annotations

import os
import subprocess
import tempfile
import zipfile
from pathlib import Path

from . import ledger
from .commands import REPOSITORY, examine
from .diff import apply_diff, header_text, parse_patch
from .errors import NOT_WANTED, REFUSED, USAGE, OverlayError
from .headers import TEMPLATE, commit_message, fields, lint, lint_probes, normalise, slug
from .installer import repair_command
from .plan import pristine_bytes, require_install, require_undrifted
from .series import Package, build_lock, default_patches, dump, load_packages, sha256
from .state import drifted_outside, read, record_rows
from .target import Install, examine_target, resolve

# Output must not depend on the author's configuration.
DIFF = [
    *("diff-tree", "-p", "-r", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", "--text"),
    *("--no-color", "--src-prefix=a/", "--dst-prefix=b/", "--unified=3", "--inter-hunk-context=0"),
    *("--diff-algorithm=myers", "--indent-heuristic"),
]
# What an author reads or changes; binaries would only make the repository slow.
TEXT = {".py", ".pyi", ".json", ".jinja", ".txt", ".toml", ".yaml", ".yml", ".md", ".cfg", ".h", ".cu", ".cuh", ".sh"}


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


def edit(python: str | None, patches: Path | None, selectors: list[str], folder: Path | None) -> Path:
    """Make the edit repository of one package and print where it is.

    Raises OverlayError: exit 2 for several packages or a folder in use, 1 for files that differ from upstream's.
    """
    examined = examine(python, patches, selectors)
    if len(examined.inspections) != 1:
        names = " ".join(i.package.import_name for i in examined.inspections)
        raise OverlayError(USAGE, "edit works on one package", found=names, repair="bash apply_patches.sh edit PACKAGE")
    (inspection,) = examined.inspections
    package, install = inspection.package, inspection.install
    require_install(inspection)
    require_undrifted(inspection)
    drifted = drifted_outside(inspection)
    if drifted:
        raise OverlayError(
            NOT_WANTED,
            f"{package.name}: {drifted[0]} differs from what upstream ships, so it cannot be a base",
            repair=repair_command(install),
        )
    if folder and folder.exists() and os.listdir(folder):
        raise OverlayError(USAGE, f"{folder} is not empty", wanted="a new folder", repair="pass another --dir")
    place = Path(folder or tempfile.mkdtemp(prefix=f"rft-edit-{package.import_name}-")).resolve()
    place.mkdir(parents=True, exist_ok=True)
    tree: dict[str, bytes | None] = {
        path: read(install.root, path)
        for path in record_rows(install)
        if path.startswith(f"{package.import_name}/") and Path(path).suffix in TEXT
    }
    tree |= {path: pristine_bytes(inspection, path, file) for path, file in inspection.files.items()}
    git(place, "init", "-q", "-b", "overlay")
    git(place, "config", "core.autocrlf", "false")
    (place / ".git/info").mkdir(exist_ok=True)
    (place / ".git/info/attributes").write_text("* -text\n")
    (place / ".git/info/exclude").write_text("__pycache__/\n")
    _write_tree(place, tree)
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", f"{package.import_name} {package.version} as upstream ships it")
    git(place, "tag", "base")
    for name, data in package.patches.items():
        for diff in parse_patch(data, name):
            tree[diff.path] = apply_diff(tree.get(diff.path), diff, name)
            _write_tree(place, {diff.path: tree[diff.path]})
        git(place, "add", "-A")
        message = commit_message(header_text(data), name.removesuffix(".patch"))
        git(place, "commit", "-q", "-F", "-", data=message.encode())
    print(f"{place}\n  change, reorder or add commits after the tag `base`, one per patch, then:")
    print(f"  bash apply_patches.sh finish {place}")
    return place


def _write_tree(place: Path, tree: dict[str, bytes | None]) -> None:
    for path, data in tree.items():
        if data is None:
            (place / path).unlink(missing_ok=True)
        else:
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(data)


def new(python: str | None, patches: Path | None, selectors: list[str], name: str, folder: Path | None) -> None:
    """Add an empty commit with a header template to the edit repository `folder`, or to a new one."""
    if slug(name) != name:
        raise OverlayError(USAGE, f"bad patch name {name!r}", wanted="lower case, digits and dashes", repair=slug(name))
    if folder is None or not (folder / ".git").exists():
        folder = edit(python, patches, selectors, folder)
    message = commit_message(TEMPLATE.format(subject=name.replace("-", " ")), name)
    git(folder, "commit", "-q", "--allow-empty", "-F", "-", data=message.encode())
    print(f"  change files, fill in the header: git -C {folder} commit -a --amend")


def finish(python: str | None, patches: Path | None, folder: Path, wheels: list[Path]) -> Package:
    """Write the commits after `base` as series, lock.json and *.patch, and the ledger patches/README.md.

    Refuses uncommitted work, merges, empty commits, files outside one package, malformed headers, and a base that is
    not what upstream ships (checked against `wheels` or the target's RECORD). Nothing is written before all is checked.
    """
    patches = patches or default_patches()
    folder = folder.resolve()
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
    paths = sorted({diff.path for name, data in contents.items() for diff in parse_patch(data, name)})
    tops = sorted({path.split("/")[0] if "/" in path else path for path in paths})
    if len(tops) != 1:
        raise OverlayError(
            NOT_WANTED, "the commits change files outside one package", found=" ".join(tops), wanted="one top folder"
        )
    package, install = _package(python, patches, tops[0], contents)
    files = {}
    for path in paths:
        pristine, wanted = (_git_file(folder, revision, path) for revision in ("base", "HEAD"))
        if package.patched(path, pristine) != wanted:
            raise OverlayError(NOT_WANTED, f"the commits do not lead from base to HEAD in {path}; is base an ancestor?")
        by = [name for name, _ in package.diffs[path]]
        if pristine == wanted:
            raise OverlayError(NOT_WANTED, f"the changes cancel out in {path}", found=", ".join(by), wanted="no change")
        files[path] = {"pristine": sha256(pristine), "patched": sha256(wanted), "by": by}
    distributions = _distributions(package, install, wheels)
    _require_upstream(package, install, files, wheels)
    lock = build_lock(package.import_name, package.version, distributions, contents, files)
    _write(package.folder, contents, lock)
    (patches / "README.md").write_text(ledger.render(load_packages(patches, [], strict=False)))
    print(f"{package.folder}: {len(contents)} patches, {len(files)} files, tree_id {lock['tree_id']}")
    for name, data in contents.items():
        for problem in lint_probes(header_text(data), REPOSITORY):
            print(f"  {name}: {problem} (`check` fails until it is there)")
    return package


def _commits(folder: Path) -> list[str]:
    """Commits after `base`, oldest first."""
    if not git(folder, "tag", "--list", "base").strip():
        raise OverlayError(
            USAGE,
            f"{folder} has no tag base",
            wanted="upstream's files, tagged",
            repair="bash apply_patches.sh edit PACKAGE",
        )
    if git(folder, "status", "--porcelain").strip():
        raise OverlayError(NOT_WANTED, f"uncommitted work in {folder}", repair=f"git -C {folder} status")
    if git(folder, "rev-list", "--merges", "base..HEAD").strip():
        raise OverlayError(NOT_WANTED, f"{folder} has merge commits after base", wanted="one line of commits")
    if git(folder, "rev-list", "base", "--not", "HEAD").strip():
        raise OverlayError(NOT_WANTED, f"{folder}: HEAD does not descend from the tag base")
    commits = git(folder, "rev-list", "--reverse", "base..HEAD").decode().split()
    if not commits:
        raise OverlayError(NOT_WANTED, f"{folder} has no commit after base", wanted="one commit per patch")
    return commits


def _known_names(patches: Path) -> dict[str, str]:
    """Subject -> file name of the patches that exist, so that a reworded series keeps its names."""
    result = {}
    for path in sorted(patches.glob("*/*.patch")):
        for subject in fields(header_text(path.read_bytes()))[0].get("Subject", []):
            result[subject] = path.name
    return result


def _git_file(folder: Path, revision: str, path: str) -> bytes | None:
    if not git(folder, "ls-tree", revision, "--", path).strip():
        return None
    return git(folder, "cat-file", "blob", f"{revision}:{path}")


def _package(python: str | None, patches: Path, top: str, contents: dict[str, bytes]) -> tuple[Package, Install]:
    """The package folder that provides `top`, with the new contents; a first series makes a new one."""
    if list(patches.glob("*/lock.json")):
        found = [p for p in load_packages(patches, [], strict=False) if p.import_name == top]
    else:
        found = []
    probe = Package(patches, top, "", {p: [] for q in found for p in q.distributions}, contents, {})
    install = resolve(examine_target(python, [probe], REPOSITORY, need_rft=False), probe)
    matching = [p for p in found if p.version == install.version.split("+")[0]]
    if found and not matching:
        known = ", ".join(p.version for p in found)
        raise OverlayError(REFUSED, f"{top} {install.version or 'is not installed'}", wanted=f"version {known}")
    if matching:
        old = matching[0]
        return Package(old.folder, top, old.version, old.distributions, contents, {}), install
    if install.refusal not in ("", "WRONG_VERSION"):
        raise OverlayError(REFUSED, f"{top}: {install.refusal}", found=install.reason, repair="pass --python PATH")
    version = install.version.split("+")[0]
    distributions = {name: [] for name in sorted({top, install.name})}
    return Package(patches / f"{top}-{version}", top, version, distributions, contents, {}), install


def _distributions(package: Package, install: Install, wheels: list[Path]) -> dict[str, list[str]]:
    result = {name: list(hashes) for name, hashes in package.distributions.items()}
    for wheel in wheels:
        name, version = wheel_name(wheel)
        if version != package.version:
            raise OverlayError(REFUSED, f"{wheel.name} is version {version}", wanted=package.version)
        hashes = result.setdefault(name, [])
        hashes[:] = sorted({*hashes, sha256(wheel.read_bytes())})
    return result


def _require_upstream(package: Package, install: Install, files: dict[str, dict], wheels: list[Path]) -> None:
    sources = [wheel_hashes(wheel, list(files)) for wheel in wheels]
    if install.refusal in ("", "WRONG_VERSION") and install.version.split("+")[0] == package.version:
        rows = record_rows(install)
        # Rows of files that patches create are ours.
        sources.append({p: rows[p] for p in files if p in rows and files[p]["pristine"] is not None})
    if not sources:
        raise OverlayError(REFUSED, f"nothing to check the base of {package.name} against", repair="pass --wheel FILE")
    for source in sources:
        for path, row in files.items():
            if source.get(path) != row["pristine"]:
                raise OverlayError(
                    NOT_WANTED,
                    f"{path} at the tag base is not what upstream ships",
                    found=str(row["pristine"]),
                    wanted=str(source.get(path)),
                    repair="make the repository with `bash apply_patches.sh edit`",
                )


def wheel_name(wheel: Path) -> tuple[str, str]:
    """(distribution, public version) from a wheel's file name."""
    if not wheel.name.endswith(".whl") or not zipfile.is_zipfile(wheel):
        raise OverlayError(USAGE, f"{wheel} is not a wheel", wanted="a .whl file of the version that is patched")
    name, version, *_ = wheel.name.split("-")
    return name.replace("_", "-").lower(), version.split("+")[0]


def wheel_files(wheel: Path, paths: list[str]) -> dict[str, bytes]:
    """Content of members by their path in site-packages (some wheels put them below *.data/purelib/)."""
    result = {}
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            path = member.split(".data/purelib/")[-1].split(".data/platlib/")[-1]
            if path in paths:
                result[path] = archive.read(member)
    return result


def wheel_hashes(wheel: Path, paths: list[str]) -> dict[str, str]:
    """path -> sha256 of wheel members."""
    return {path: sha256(data) for path, data in wheel_files(wheel, paths).items()}


def _write(folder: Path, contents: dict[str, bytes], lock: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.patch"):
        if path.name not in contents:
            path.unlink()
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    (folder / "series").write_text("".join(f"{name}\n" for name in contents))
    (folder / "lock.json").write_bytes(dump(lock))
