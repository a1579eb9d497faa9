"""The patched trees, here and on every Ray node, and the installed versions against the lock file."""

import os
import re
import shlex
import sys
from pathlib import Path

from rft import overlay
from rft.overlay import commands, nodes
from rft.overlay.errors import OverlayError
from rft.overlay.installer import pip_install
from rft.record.environment import stack_name
from rft.runs.manifest import PACKAGES, ROOT
from rft.runs.preflight.lines import GO, NO_GO, WARN, Line, lines
from rft.runs.preflight.machine import REPAIR, place_of

OWN_CLUSTER = "RFT_RAY_LOGS"  # launch/ray.sh sets it for the cluster that the launch has started itself


def check_patches() -> list[Line]:
    """Every package exactly APPLIED, and the files that no patch touches as upstream ships them."""
    try:
        examined = commands.examine(sys.executable)
        commands.verify(examined, [])
    except OverlayError as error:
        found = f": {error.found}" if error.found else ""
        return [Line("patches", NO_GO, f"{error.what}{found}", error.repair)]
    found = ", ".join(f"{i.package.import_name} {i.tree_id}" for i in examined.inspections)
    return [Line("patches", GO, found)]


def check_nodes() -> list[Line]:
    """The same trees on every node of RAY_ADDRESS's cluster; one that this launch has started has this node only."""
    address = os.environ.get("RAY_ADDRESS")
    if not address or os.environ.get(OWN_CLUSTER):
        return [Line("Ray nodes", GO, "this machine only")]
    try:
        place_of(address)
    except ValueError as error:
        return [Line("Ray nodes", NO_GO, str(error), REPAIR)]
    ids = overlay.tree_ids(sys.executable)
    try:
        rows = nodes.collect()
    except OverlayError as error:
        return [Line("Ray nodes", NO_GO, f"{error.what}: {error.found}", error.repair)]
    repair = "bash apply_patches.sh on each node, from the same commit"
    faults = nodes.compare(rows, {name: {found} for name, found in ids.items()})
    return lines("Ray nodes", [Line("Ray nodes", NO_GO, fault, repair) for fault in faults], f"{len(rows)}, all equal")


def check_versions(lock: Path | None = None) -> list[Line]:
    """The lock file's versions: those that decide a run's numbers must fit, others and Python 3.11 itself should."""
    stack = os.environ.get("RFT_STACK") or stack_name()
    arm = stack == "gpu" and os.uname().machine == "aarch64"
    lock = lock or ROOT / "requirements" / ("gpu-aarch64.txt" if arm else f"{stack}.txt")
    pins = dict(re.findall(r"^([A-Za-z0-9_.-]+)==([^\s\\]+)", lock.read_text(), re.MULTILINE))
    found = installed_versions()
    differ = {n: (found.get(n), wanted) for n, wanted in pins.items() if not same_version(found.get(n), wanted)}
    repair = f"{pip_install()} --no-deps --require-hashes -r requirements/{lock.name} && bash apply_patches.sh"
    if arm:  # which lacks openrlhf, and would bring the torch without CUDA: all that set-up does there, again
        repair = f"rm -f {shlex.quote(f'{sys.prefix}/.rft-setup')} && RFT_STACK=gpu TORCH_INDEX=ADDRESS make setup"
    faults = []
    if sys.version_info[:2] != (3, 11):
        measured = f"Python {sys.version_info.major}.{sys.version_info.minor}, wanted 3.11"
        faults.append(Line("versions", WARN, measured, "make setup, then .venv/bin/python"))
    for verdict in (NO_GO, WARN):
        if names := [name for name in differ if (name in PACKAGES) == (verdict == NO_GO)]:
            shown = ", ".join(f"{n} {differ[n][0] or 'missing'} (wanted {differ[n][1]})" for n in names[:4])
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            faults.append(Line("versions", verdict, shown + more, repair))
    return lines("versions", faults, f"{len(pins)} packages as in requirements/{lock.name}")


def installed_versions() -> dict[str, str]:
    """Version by normalised name; two lines of each METADATA file, since parsing 250 of them takes a second."""
    found = {}
    for place in reversed(sys.path):
        for file in Path(place).glob("*.dist-info/METADATA") if place else ():
            head = dict(re.findall(r"^(Name|Version): *(\S+)", file.read_text(errors="replace"), re.MULTILINE)[:2])
            found[re.sub(r"[-_.]+", "-", head["Name"]).lower()] = head["Version"]
    return found


def same_version(found: str | None, wanted: str) -> bool:
    """Whether `found` is `wanted`, whatever the build (`2.10.0+cu128`)."""
    return found is not None and found.partition("+")[0] == wanted.partition("+")[0]
