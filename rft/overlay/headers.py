"""Patch headers: the fields in front of the diff, and their lint."""

from __future__ import annotations

import re
from pathlib import Path

from .versions import satisfies

REQUIRED = ("Subject", "Group", "Why", "Upstream-Status", "Affects", "Probe", "Remove-When")
REPEATABLE = ("Probe", "Gate")
# In the order of the ledger: what training gpt-oss needs comes first.
GROUPS = {
    "gpt-oss": "load, train and save gpt-oss in the memory that there is",
    "sync": "the engine samples from the policy that is trained",
    "loss": "the objective and its gradient are what they should be",
    "measure": "numbers and samples of every step",
    "evaluate": "evaluations that can be compared",
    "reproduce": "equal seeds give equal runs, also after a resume",
    "fail loudly": "stop with the reason instead of continuing; take nothing from strangers",
    "CPU": "run without a GPU",
}
ESSENTIAL = ("gpt-oss", "sync")
_FIELD = re.compile(r"([A-Z][A-Za-z-]*):(?:\s+(.*))?")
_CLAUSE = r"\s*(===|~=|==|!=|<=|>=|<|>)\s*[0-9][0-9A-Za-z.!+*-]*\s*"
_SYNTAX = {
    "Group": ("|".join(map(re.escape, GROUPS)), f"one of {', '.join(GROUPS)}"),
    "Upstream-Status": (
        r"Pending( \[.+\])?|(Submitted|Backport|Fixed) \[https?://\S+\]|Inappropriate \[.+\]",
        "Pending | Submitted [url] | Backport [url] | Fixed [url] | Inappropriate [reason]",
    ),
    "Affects": (r".+ \(numerics: (changed|unchanged)\)", "<what> (numerics: changed|unchanged)"),
    "Gate": (r"[A-Za-z_][A-Za-z0-9_]*=\S+ \(default off\)", "NAME=VALUE (default off)"),
    "Probe": (r"tests/\S+\.py::\w+(::\w+)*", "tests/FILE.py::FUNCTION"),
    "Remove-When": (
        rf"([A-Za-z0-9][A-Za-z0-9._-]*{_CLAUSE}(,{_CLAUSE})*|not yet|never) \[.+\]",
        "<dist><PEP 440 specifier> [what it has] | not yet [what VERSION lacks] | never [reason]",
    ),
}
TEMPLATE = """Subject: {subject}
Group: TODO
Why: TODO
Upstream-Status: Pending
Affects: TODO (numerics: unchanged)
Probe: tests/patches/TODO.py::TODO
Remove-When: not yet [TODO]
"""


def fields(text: str) -> tuple[dict[str, list[str]], list[str]]:
    """Parse a header into field -> values, and list what is malformed.

    A field is `Name: value`; indented lines continue it; blank lines separate nothing.
    """
    found: dict[str, list[str]] = {}
    problems: list[str] = []
    last = ""
    for line in text.splitlines():
        match = _FIELD.fullmatch(line.rstrip())
        if not line.strip():
            continue
        if line[0] in " \t" and last:
            found[last][-1] = f"{found[last][-1]} {line.strip()}".strip()
        elif match and match[1] in (*REQUIRED, *REPEATABLE):
            last = match[1]
            found.setdefault(last, []).append((match[2] or "").strip())
        else:
            problems.append(
                f"unknown header line {line!r}: fields are {', '.join((*REQUIRED, 'Gate'))}, indent to continue"
            )
    return found, problems


def due(text: str, distributions: list[str], version: str) -> str:
    """The Remove-When of a header where this version of one of the distributions makes it true; else empty."""
    for value in fields(text)[0].get("Remove-When", []):
        match = re.match(rf"([A-Za-z0-9][A-Za-z0-9._-]*?)({_CLAUSE}(?:,{_CLAUSE})*) \[", value)
        if match and match[1].lower() in distributions and satisfies(version, match[2]):
            return value
    return ""


def lint(text: str) -> list[str]:
    """What is wrong with a header's fields; empty when it is well-formed."""
    found, problems = fields(text)
    for name in REQUIRED:
        if not any(found.get(name, [])):
            problems.append(f"{name}: is missing")
    for name, values in found.items():
        if len(values) > 1 and name not in REPEATABLE:
            problems.append(f"{name}: found {len(values)} times")
        for value in values:
            pattern, wanted = _SYNTAX.get(name, (r".*", ""))
            if value and not re.fullmatch(pattern, value):
                problems.append(f"{name}: found {value!r}, wanted {wanted}")
            if "TODO" in value:
                problems.append(f"{name}: still says TODO")
    return problems


def lint_probes(text: str, repository: Path) -> list[str]:
    """Probes that name no existing test function."""
    problems = []
    for probe in fields(text)[0].get("Probe", []):
        path, *names = probe.split("::")
        place = repository / path
        if not place.is_file():
            problems.append(f"Probe: no such file {path}")
        elif names and not re.search(rf"(?m)^\s*(async )?def {re.escape(names[-1])}\b", place.read_text()):
            problems.append(f"Probe: {path} defines no {names[-1]}")
    return problems


def normalise(message: str) -> tuple[str, str]:
    """Turn a commit message into (header text, patch name or "").

    `Patch-Name: x` carries the file name and is dropped; a first line without field name is the Subject.
    """
    name = ""
    lines = []
    for line in message.strip().splitlines():
        if line.startswith("Patch-Name:"):
            name = line.partition(":")[2].strip()
        elif line.strip():
            lines.append(line.rstrip())
    if lines and not _FIELD.fullmatch(lines[0]):
        lines[0] = f"Subject: {lines[0]}"
    elif lines and _FIELD.fullmatch(lines[0])[1] not in REQUIRED:
        lines[0] = f"Subject: {lines[0]}"  # "ppo_actor: …" looks like a field and is a subject
    return "\n".join(lines) + "\n", name


def commit_message(header: str, name: str) -> str:
    """The commit message that `normalise` turns back into `header`, with a subject line as git wants it."""
    first, _, rest = header.strip().partition("\n")
    if first.startswith("Subject: ") and not rest.startswith((" ", "\t")):
        header = f"{first.removeprefix('Subject: ')}\n\n{rest}"
    return f"{header.strip()}\nPatch-Name: {name}\n"


def slug(subject: str) -> str:
    """File name for a patch that was given none."""
    return re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-")[:60].strip("-")
