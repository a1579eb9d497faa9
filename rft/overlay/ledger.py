"""patches/README.md: a table of every patch, generated from the headers."""

from __future__ import annotations

from .diff import header_text, parse_patch
from .headers import fields
from .series import Package

HEAD = """# Patches
Written by `python -m rft.overlay finish` from the patch headers; `check` fails when it is stale. How to change a patch:
`docs/overlay.md`.
"""
TITLES = ("patch", "subject", "why", "files", "upstream status", "affects", "gate", "probe", "remove when")


def render(packages: list[Package]) -> str:
    """The whole file."""
    return "\n".join([HEAD, *(_section(package) for package in packages)])


def _section(package: Package) -> str:
    lock = package.lock
    lines = [
        f"## {package.name}",
        f"{len(package.patches)} patches, {len(package.files)} files, tree_id `{lock['tree_id']}`, "
        f"series_id `{lock['series_id']}`. Applies to {' or '.join(f'`{name}`' for name in package.distributions)} "
        f"{package.version}.",
        "",
        f"| {' | '.join(TITLES)} |",
        "|---" * len(TITLES) + "|",
    ]
    for name, data in package.patches.items():
        found = {k: "<br>".join(v).replace("|", "\\|") for k, v in fields(header_text(data))[0].items()}
        row = [f"[{name}]({package.name}/{name})"]
        row += [found.get("Subject", ""), found.get("Why", "")]
        row += ["<br>".join(f"`{diff.path}`" for diff in parse_patch(data, name))]
        row += [found.get(column, "") for column in ("Upstream-Status", "Affects", "Gate", "Probe", "Remove-When")]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"
