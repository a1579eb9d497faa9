"""Command line of the overlay."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from pathlib import Path

from . import commands
from .errors import NOT_WANTED, NOT_WRITABLE, OK, USAGE, OverlayError
from .state import Inspection
from .transaction import READ_ONLY


@functools.cache
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rft.overlay", description="Versioned patches over installed packages.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, packages: bool = True) -> argparse.ArgumentParser:
        sub = subparsers.add_parser(name, help=text, description=text)
        if packages:
            sub.add_argument(
                "packages", nargs="*", metavar="PACKAGE", help="default: every package in the patches folder"
            )
        sub.add_argument(
            "--python", metavar="PATH", help="target interpreter (default: .venv/bin/python, else python3)"
        )
        sub.add_argument("--patches", type=Path, metavar="DIR", help="default: patches/ of this repository")
        return sub

    status = command("status", "Print the state of every package. Reads only.")
    verify = command("verify", "Exit 1 unless every package is exactly APPLIED. Reads only.")
    verify.add_argument("--expect", action="append", default=[], metavar="[NAME=]ID", help="wanted tree_id")
    verify.add_argument(
        "--ray", action="store_true", help="compare the tree_id of every node of the running Ray cluster"
    )
    apply = command("apply", "Apply the series, all or nothing.")
    revert = command("revert", "Restore the bytes that upstream ships.")
    repair = command("repair", "Give drifted files the bytes that upstream ships, and apply the series.")
    for sub in (apply, revert):
        sub.add_argument("--dry-run", action="store_true", help="plan and check, write nothing")
    for sub in (apply, revert, repair):
        sub.add_argument("--wait", type=float, default=10, metavar="SECONDS", help="for the lock (default 10)")
    for sub in (status, verify, apply, revert, repair):
        sub.add_argument("--json", action="store_true")

    check = command("check", "Check headers, series, locks and the ledger; compare with git apply and patch -F0.")
    edit = command("edit", "Make a git repository: pristine package, one commit per patch.", packages=False)
    new = command("new", "Add an empty commit with a header to an edit repository.", packages=False)
    finish = command("finish", "Write the commits of an edit repository back as patches.", packages=False)
    edit.add_argument("packages", nargs="*", metavar="PACKAGE", help="needed where there are several")
    new.add_argument("packages", nargs=1, metavar="PACKAGE")
    new.add_argument("name", metavar="NAME", help="file name of the patch, without .patch")
    finish.add_argument("dir", type=Path, metavar="DIR", help="git repository with the tag `base`")
    rebase = command("rebase", "Carry a series to another release of its package, patch by patch.", packages=False)
    rebase.add_argument("packages", nargs=1, metavar="PACKAGE")
    rebase.add_argument("version", nargs="?", default="", metavar="VERSION", help="with --check: default the newest")
    rebase.add_argument("--check", action="store_true", help="say what it would cost, write nothing")
    rebase.add_argument("--continue", dest="resume", action="store_true", help="after a conflict is settled, or a kill")
    rebase.add_argument("--json", action="store_true", help="the report as a document")
    rebase.add_argument("--dir", type=Path, metavar="DIR", help="default: .cache/rebase/PACKAGE-VERSION")
    for sub in (edit, new):
        sub.add_argument("--dir", type=Path, metavar="DIR", help="default: a new temporary folder")
    for sub in (check, finish, repair, rebase):
        sub.add_argument("--wheel", type=Path, action="append", default=[], metavar="FILE", help="upstream's wheel")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status listed in docs/overlay.md."""
    arguments = _parser().parse_args(argv)
    try:
        return _COMMANDS[arguments.command](arguments)
    except OverlayError as error:
        if getattr(arguments, "json", False):
            print(json.dumps(error.document(), indent=1))
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return NOT_WRITABLE if error.errno in READ_ONLY else USAGE


def _examine(arguments, need_rft: bool = False) -> commands.Examined:
    return commands.examine(arguments.python, arguments.patches, arguments.packages, need_rft)


def _status(arguments) -> int:
    _show(arguments, _examine(arguments))
    return OK


def _verify(arguments) -> int:
    if arguments.ray:
        from .nodes import verify_nodes

        return verify_nodes(arguments)
    examined = _examine(arguments)
    commands.verify(examined, arguments.expect)
    _show(arguments, examined)
    return OK


def _change_tree(arguments) -> int:
    run = getattr(commands, arguments.command)
    examined = _examine(arguments, need_rft=arguments.command == "apply")
    examined, changes = run(examined, arguments.wait, arguments.dry_run)
    found = examined.target.rft
    if found and Path(found["file"]).resolve().parent.parent != commands.REPOSITORY:
        print(f"note: the target imports rft from {found['file']}, not from {commands.REPOSITORY}", file=sys.stderr)
    files = [c.path for c in changes if not c.path.startswith((".", c.owner))]
    goal = "APPLIED" if arguments.command == "apply" else "CLEAN"
    if arguments.json:
        document = examined.document() | {"dry_run": arguments.dry_run, "changed": files}
        document["ok"] = arguments.dry_run or all(i.state == goal for i in examined.inspections)
        print(json.dumps(document, indent=1))
    elif arguments.dry_run:
        print("\n".join(f"would write {path}" for path in files) or "nothing to do")
    else:
        _print(examined)
        print(f"{len(files)} files changed" if files else "nothing to do")
    return OK if arguments.dry_run or all(i.state == goal for i in examined.inspections) else NOT_WANTED


def _repair(arguments) -> int:
    from .repair import repair

    examined, changes, notes = repair(_examine(arguments, need_rft=True), arguments.wait, arguments.wheel)
    files = [c.path for c in changes if not c.path.startswith((".", c.owner))]
    if arguments.json:
        print(json.dumps(examined.document() | {"changed": files, "notes": notes}, indent=1))
    else:
        print("\n".join([f"written: {path}" for path in files] or ["nothing to do"]))
        _print(examined)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return OK


def _show(arguments, examined: commands.Examined) -> None:
    if arguments.json:
        print(json.dumps(examined.document(), indent=1))
    else:
        _print(examined)


def _print(examined: commands.Examined) -> None:
    for inspection in examined.inspections:
        print(_line(inspection))
        # Files of the package's own state are nothing new; the rest need a look.
        usual = {"APPLIED": "PATCHED", "CLEAN": "PRISTINE"}.get(inspection.state)
        for path, file in inspection.files.items():
            if file.state != usual:
                print(f"  {file.state:<10} {path}  {(file.found or 'no such file')[:12]}  {file.note}".rstrip())


def _line(inspection: Inspection) -> str:
    package, install = inspection.package, inspection.install
    where = f" ({install.name} {install.version})" if install.name else ""
    ids = (
        f"  tree_id {inspection.tree_id}  series_id {package.lock['series_id']}"
        if inspection.state == "APPLIED"
        else ""
    )
    counts = f"  {len(package.patches)} patches, {len(package.files)} files"
    reason = f"  {inspection.reason}" if inspection.reason else ""
    return f"{package.name}{where}  {inspection.state}{ids}{counts}{reason}"


def _check(arguments) -> int:
    from .check import check

    problems, notes = check(arguments.python, arguments.patches, arguments.packages, arguments.wheel)
    for problem in problems:
        print(problem, file=sys.stderr)
    for note in notes:
        print(f"note: {note}")
    print(f"{len(problems)} problems" if problems else "check: ok")
    return NOT_WANTED if problems else OK


def _edit(arguments) -> int:
    from .author import edit

    edit(arguments.python, arguments.patches, arguments.packages, arguments.dir)
    return OK


def _new(arguments) -> int:
    from .author import new

    new(arguments.python, arguments.patches, arguments.packages, arguments.name, arguments.dir)
    return OK


def _finish(arguments) -> int:
    from .author import finish

    finish(arguments.python, arguments.patches, arguments.dir, arguments.wheel)
    return OK


def _rebase(arguments) -> int:
    from .rebase_command import rebase

    return rebase(arguments)


_COMMANDS = {
    "status": _status,
    "verify": _verify,
    "apply": _change_tree,
    "revert": _change_tree,
    "repair": _repair,
    "check": _check,
    "edit": _edit,
    "new": _new,
    "finish": _finish,
    "rebase": _rebase,
}
