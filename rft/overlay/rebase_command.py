"""The command `rebase`, and its report as text."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import textwrap
from argparse import Namespace
from pathlib import Path

from . import rebase as series_rebase
from .errors import NOT_WANTED, OK, REFUSED, USAGE, OverlayError
from .merge import CLEAN, CONFLICT, MOVED
from .rebase_source import find_source, old_release
from .series import default_patches, load_packages
from .upstream import find_release
from .wheels import wheel_name


def rebase(arguments: Namespace) -> int:
    """Carry the series, or with --check say what that would cost; exit 1 where a patch is in conflict."""
    patches = (arguments.patches or default_patches()).resolve()
    (selector,) = arguments.packages
    if not arguments.version and not arguments.check:
        raise OverlayError(
            USAGE,
            "rebase needs a version",
            wanted="VERSION, or --check for the newest",
            repair=f".venv/bin/python -m rft.overlay rebase {selector} --check",
        )
    if arguments.check and arguments.resume:
        raise OverlayError(USAGE, "--check and --continue", wanted="one of them")
    given = {"--dir": arguments.dir, "--patches": arguments.patches}
    options = "".join(f" {name} {shlex.quote(str(path))}" for name, path in given.items() if path)
    if arguments.resume:
        source = find_source(patches, selector, arguments.version, options)
        with _stdout_for_the_report(arguments):
            report = series_rebase.resume(source, _work(arguments, source.name))
        return _show(arguments, report, source)
    names = _distributions(load_packages(patches, [selector], strict=False), selector)
    import_name = load_packages(patches, [selector], strict=False)[0].import_name
    newest = None if arguments.version else find_release(names, "", import_name, arguments.wheel)
    source = find_source(patches, selector, newest.version if newest else arguments.version, options)
    _require_used(arguments.wheel, names, [source.version, source.package.version])
    release = newest or find_release(names, source.version, import_name, arguments.wheel)
    old = old_release(source, arguments.python, arguments.wheel, names)
    if arguments.check:
        report = series_rebase.check(source, release, old)
    else:
        with _stdout_for_the_report(arguments):
            report = series_rebase.start(source, release, old, _work(arguments, source.name))
    return _show(arguments, report, source)


def _stdout_for_the_report(arguments: Namespace) -> contextlib.AbstractContextManager:
    """With --json, stdout holds the document alone."""
    return contextlib.redirect_stdout(sys.stderr) if arguments.json else contextlib.nullcontext()


def _work(arguments: Namespace, name: str) -> Path:
    patches = (arguments.patches or default_patches()).resolve()
    return (arguments.dir or patches.parent / ".cache/rebase" / name).resolve()


def _distributions(packages: list, selector: str) -> list[str]:
    """Names to ask the package index for: the given one first, where it is a distribution's."""
    names = [name for package in packages for name in package.distributions]
    return sorted(dict.fromkeys(names), key=lambda name: name != selector)


def _require_used(wheels: list[Path], names: list[str], versions: list[str]) -> None:
    """Refuse (exit 3) a wheel of neither release, instead of asking the package index for what it should have been."""
    for wheel in wheels:
        name, version = wheel_name(wheel)
        if name not in names or version not in versions:
            raise OverlayError(
                REFUSED,
                f"{wheel} is of neither release",
                found=f"{name} {version}",
                wanted=f"{' or '.join(names)}, {' or '.join(versions)}",
                repair="pass a wheel of one of them, or none: the package index has them",
            )


def _show(arguments: Namespace, report: dict, source: series_rebase.Source) -> int:
    conflicts = [row for row in report["patches"] if row["status"] == CONFLICT]
    if arguments.json:
        print(json.dumps(report, indent=1))
    else:
        print(text(report))
        if "work" in report:
            print(_what_now(report["work"], conflicts[0], source.command))
    return NOT_WANTED if conflicts else OK


def text(report: dict) -> str:
    """The report for people: counts, the names of patches that are as they were, then each of the others."""
    rows = report["patches"]
    counts = ", ".join(f"{count} {status}" for status, count in report["counts"].items())
    hunks = f" ({report['conflict_hunks']} hunks in conflict)" if report["conflict_hunks"] else ""
    lines = [f"{report['from']} -> {report['package']}: {counts}{hunks}"]
    for status in (CLEAN, MOVED):
        if names := [row["patch"].removesuffix(".patch") for row in rows if row["status"] == status]:
            lines += _wrapped(f"  {status:<17}{', '.join(names)}")
    for row in rows:
        hunks = row.get("conflicts", {}) if row["status"] == CONFLICT else {}
        where = [f"{path}: {count} in conflict" for path, count in hunks.items()]
        where += [f"{path}: {note}" for path, note in row.get("notes", {}).items()]
        if row["status"] not in (CLEAN, MOVED) or where:
            lines.append(f"  {row['status']:<17}{row['patch'].removesuffix('.patch')}" + _indented(where))
        if "remove_when" in row:
            lines.append(f"  {'Remove-When':<17}{row['patch'].removesuffix('.patch')}: {row['remove_when']}")
    for title, names in report["requirements"].items():
        if names:
            lines.append(f"  requires {title}: {', '.join(names)}")
    if report["left"]:
        lines.append(f"  {report['left']} patches are still to carry")
    return "\n".join(lines)


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, 120, subsequent_indent=" " * 19, break_long_words=False, break_on_hyphens=False)


def _indented(where: list[str]) -> str:
    return "".join(f"\n{'':<19}{line}" for line in where)


def _what_now(work: str, row: dict, command: str) -> str:
    return (
        f"{row['patch']} needs you. In {work}: edit the files named above; lines between <<<<<<< and ||||||| are\n"
        f"upstream's, those between ======= and >>>>>>> the patch's. Carry what a FILE.rej holds to where the code is\n"
        f"now, and delete it. Upstream's files as they are drop the patch. Then:\n  {command} --continue"
    )
