"""patches/README.md: every patch by group, generated from the headers."""

from __future__ import annotations

from .diff import header_text, parse_patch
from .headers import ESSENTIAL, GROUPS, fields
from .series import Package

HEAD = """# Patches
Written by `bash apply_patches.sh finish` from the patch headers; `check` fails when it is stale. How to change a patch:
`docs/overlay.md`.

What training gpt-oss with LoRA is about is in {essential}; the other groups make its numbers right, visible and
repeatable, or let it run without a GPU. The groups are for reading: the series is applied as a whole. A gate is the
option or variable that turns a patch on, or the part of it that `Affects` names.
"""


def render(packages: list[Package]) -> str:
    """The complete file: what the groups are for, a table a group, then the details of each package's patches."""
    rows = [
        (package, name, data, {k: [_plain(v) for v in values] for k, values in fields(header_text(data))[0].items()})
        for package in packages
        for name, data in package.patches.items()
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
    return "\n".join([*lines, "", *(_details(package, rows) for package in packages)])


def _details(package: Package, rows: list[tuple]) -> str:
    lock = package.lock
    lines = [
        f"## Details: {package.name}",
        f"{len(package.patches)} patches, {len(package.files)} files, tree_id `{lock['tree_id']}`, "
        f"series_id `{lock['series_id']}`. Applies to {' or '.join(f'`{name}`' for name in package.distributions)} "
        f"{package.version}. In the order of the series; paths are in `{package.import_name}/`.",
        "",
    ]
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
