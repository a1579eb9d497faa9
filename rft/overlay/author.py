"""edit, new, finish: patches are written in a throwaway git repository, one commit per patch, tag `base` = pristine."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from . import ledger
from .commands import REPOSITORY, examine
from .commits import REBASE, all_diffs, changed_files, commit_patch, git, make_repository, read_commits
from .diff import apply_diff, header_text, parse_patch
from .errors import NOT_WANTED, REFUSED, USAGE, OverlayError
from .headers import TEMPLATE, commit_message, lint_probes, slug
from .installer import repair_command
from .plan import pristine_bytes, require_install, require_undrifted
from .rebase_source import mark_edited
from .series import Package, build_lock, default_patches, dump, load_packages, sha256
from .state import drifted_outside, read, record_rows
from .target import Install, examine_target, resolve
from .wheels import TEXT, wheel_hashes, wheel_name


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
    tree: dict[str, bytes | None] = {
        path: read(install.root, path)
        for path in record_rows(install)
        if path.startswith(f"{package.import_name}/") and Path(path).suffix in TEXT
    }
    tree |= {path: pristine_bytes(inspection, path, file) for path, file in inspection.files.items()}
    make_repository(place, tree, f"{package.import_name} {package.version} as upstream ships it", package.version)
    for name, data in package.patches.items():
        made = {diff.path: apply_diff(tree.get(diff.path), diff, name) for diff in parse_patch(data, name)}
        commit_patch(place, name, data, made)
        tree |= made
    print(f"{place}\n  change, reorder or add commits after the tag `base`, one per patch, then:")
    print(f"  bash apply_patches.sh finish {place}")
    return place


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

    Refuses the folder of a rebase (exit 2), uncommitted work, merges, empty commits, files outside one package,
    malformed headers, and a base that is not what upstream ships (checked against `wheels` or the target's RECORD).
    Nothing is written before all is checked.
    """
    patches = patches or default_patches()
    folder = folder.resolve()
    if (folder / REBASE).is_file():
        version = git(folder, "config", "--get", "rft.version").decode().strip()
        raise OverlayError(
            USAGE,
            f"a rebase is under way in {folder}, whose commits are no whole series",
            wanted="the folder of `edit`",
            repair=f".venv/bin/python -m rft.overlay rebase PACKAGE {version} --dir {folder} --continue",
        )
    contents = read_commits(folder, patches)
    tops = sorted({diff.path.split("/")[0] for diff in all_diffs(contents)})
    if len(tops) != 1:
        raise OverlayError(
            NOT_WANTED, "the commits change files outside one package", found=" ".join(tops), wanted="one top folder"
        )
    package, install = _package(python, patches, tops[0], contents, folder)
    files = changed_files(folder, package)
    distributions = _distributions(package, install, wheels)
    _require_upstream(package, install, files, wheels)
    mark_edited(package)
    return write_series(patches, package, distributions, files)


def write_series(
    patches: Path, package: Package, distributions: dict[str, list[str]], files: dict[str, dict]
) -> Package:
    """Write the folder of a series, and the ledger of all of them."""
    contents = package.patches
    lock = build_lock(package.import_name, package.version, distributions, contents, files)
    _write(package.folder, contents, lock)
    if package.folder.parent != patches:  # staged, so that a folder half written is never seen
        package = replace(package, folder=_moved(package.folder, patches / package.folder.name))
    (patches / "README.md").write_text(ledger.render(load_packages(patches, [], strict=False)))
    print(f"{package.folder}: {len(contents)} patches, {len(files)} files, tree_id {lock['tree_id']}")
    for name, data in contents.items():
        for problem in lint_probes(header_text(data), REPOSITORY):
            print(f"  {name}: {problem} (`check` fails until it is there)")
    return package


def _package(
    python: str | None, patches: Path, top: str, contents: dict[str, bytes], folder: Path
) -> tuple[Package, Install]:
    """The package folder that provides `top`, with the new contents; a first series makes a new one.

    Of several series it is the one whose version `edit` has written into the repository, else the installed one's.
    """
    if list(patches.glob("*/lock.json")):
        found = [p for p in load_packages(patches, [], strict=False) if p.import_name == top]
    else:
        found = []
    probe = Package(patches, top, "", {p: [] for q in found for p in q.distributions}, contents, {})
    install = resolve(examine_target(python, [probe], REPOSITORY, need_rft=False), probe)
    version = git(folder, "config", "--default", install.version, "--get", "rft.version").decode().strip().split("+")[0]
    matching = [p for p in found if p.version == version]
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
        raise OverlayError(
            REFUSED,
            f"nothing to check the base of {package.name} against",
            repair="pass --wheel FILE, or --python of an environment that has this version",
        )
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


def _moved(staged: Path, folder: Path) -> Path:
    """Put a new folder in the place of the one that is there, if any."""
    aside = staged.with_name(f"{staged.name}.old")
    if folder.exists():
        shutil.move(folder, aside)
    shutil.move(staged, folder)
    shutil.rmtree(aside, ignore_errors=True)
    return folder


def _write(folder: Path, contents: dict[str, bytes], lock: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.patch"):
        if path.name not in contents:
            path.unlink()
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    (folder / "series").write_text("".join(f"{name}\n" for name in contents))
    (folder / "lock.json").write_bytes(dump(lock))
