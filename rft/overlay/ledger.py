"""patches/README.md: every patch by group, generated from the headers."""

from __future__ import annotations

from .diff import header_text, parse_patch
from .headers import ESSENTIAL, GROUPS, fields
from .merge import CLEAN, MOVED
from .rebase_source import read_report
from .series import Package

HEAD = """# Patches
Written by `bash apply_patches.sh finish` from the patch headers; `check` fails when it is stale. How to change a patch:
`docs/overlay.md`.

What training gpt-oss with LoRA is about is in {essential}; the other groups make its numbers right, visible and
repeatable, or let it run without a GPU. The groups are for reading: the series is applied as a whole. A gate is the
option or variable that turns a patch on, or the part of it that `Affects` names.
"""


def render(packages: list[Package]) -> str:
    """The complete file: what the groups are for, a table a group, then the details of each package's patches.

    A patch that several series of one package have is listed once, by the first of them.
    """
    rows = [
        (package, name, data, {k: [_plain(v) for v in values] for k, values in fields(header_text(data))[0].items()})
        for package in packages
        for name, data in package.patches.items()
        if package is _first_with(packages, package, name)
    ]
    groups = {group: [row for row in rows if row[3].get("Group") == [group]] for group in GROUPS}
    lines = [HEAD.format(essential=" and ".join(f"`{group}`" for group in ESSENTIAL))]
    lines += ["| group | patches | what for |", "|---|---|---|"]
    lines += [f"| [{g}](#{_anchor(g)}) | {len(found)} | {GROUPS[g]} |" for g, found in groups.items() if found]
    for group, found in groups.items():
        if found:
            lines += ["", f"## {group}", "| patch | why | gate |", "|---|---|---|"]
        for package, name, _, header in found:
            gates = "<br>".join(f"`{gate.removesuffix(' (default off)')}`" for gate in header.get("Gate", []))
            lines.append(f"| {_link(package, name)} | {_cell(_first(header, 'Why'))} | {gates} |")
    return "\n".join([*lines, "", *(_details(package, packages, rows) for package in packages)])


def _first_with(packages: list[Package], package: Package, name: str) -> Package:
    return next(p for p in packages if p.import_name == package.import_name and name in p.patches)


def _outline(package: Package, name: str) -> tuple:
    """Header and files of a patch: what the details say of it."""
    data = package.patches[name]
    return fields(header_text(data)), [diff.path for diff in parse_patch(data, name)]


def _carried(package: Package) -> str:
    """What `rebase` has made of the series that this one comes from, by rebase.json; empty without one."""
    report = read_report(package) or {"patches": []}
    by_status: dict[str, list[str]] = {}
    for row in report["patches"]:
        by_status.setdefault(row["status"], []).append(row["patch"].removesuffix(".patch"))
    shown = [f"{len(by_status[status])} {status}" for status in (CLEAN, MOVED) if status in by_status]
    rest = {status: names for status, names in by_status.items() if status not in (CLEAN, MOVED)}
    shown += [f"{len(names)} {status} ({', '.join(sorted(names))})" for status, names in rest.items()]
    return f" Carried from {report['from']}: {', '.join(shown)}." if shown else ""


def _details(package: Package, packages: list[Package], rows: list[tuple]) -> str:
    lock = package.lock
    lines = [
        f"## Details: {package.name}",
        f"{len(package.patches)} patches, {len(package.files)} files, tree_id `{lock['tree_id']}`, "
        f"series_id `{lock['series_id']}`. Applies to {' or '.join(f'`{name}`' for name in package.distributions)} "
        f"{package.version}.{_carried(package)} In the order of the series; paths are in `{package.import_name}/`.",
        "",
    ]
    above = {name: _first_with(packages, package, name) for name in package.patches}
    above = {name: first for name, first in above.items() if first is not package}
    other = [name for name, first in above.items() if _outline(package, name) != _outline(first, name)]
    if above:
        said = f"{len(above)} of them are described above, by the series that they come from"
        links = ", ".join(_link(package, name) for name in other)
        lines.insert(2, f"{said}; of these, with another header or other files here: {links}." if other else f"{said}.")
    if len(above) == len(package.patches):
        lines.pop()
    for owner, name, data, header in rows:
        if owner is not package:
            continue
        files = ", ".join(f"`{diff.path.removeprefix(package.import_name + '/')}`" for diff in parse_patch(data, name))
        probes = ", ".join(f"`{probe}`" for probe in header.get("Probe", []))
        lines.append(
            f"- **{_link(package, name)}** {_first(header, 'Subject')}.<br>Files: {files}. "
            f"Upstream: {_first(header, 'Upstream-Status')}. Affects: {_first(header, 'Affects')}.<br>"
            f"Probe: {probes}. Remove when: {_first(header, 'Remove-When')}."
        )
    return "\n".join(lines) + "\n"


def _link(package: Package, name: str) -> str:
    mark = "" if package.import_name == "openrlhf" else f" ({package.import_name})"
    return f"[{name.removesuffix('.patch')}]({package.name}/{name}){mark}"


def _first(header: dict[str, list[str]], field: str) -> str:
    return header.get(field, [""])[0]


def _plain(text: str) -> str:
    """Text in which Markdown finds no HTML tag."""
    return text.replace("<", "\\<")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")
