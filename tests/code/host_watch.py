"""What a program may have left on the host: processes, files, shared memory, sockets."""

import ctypes
import glob
import os
import time
from pathlib import Path

from attack_case import MARK

NAMES = ("rft_attack_*", "core", "core.[0-9]*", "*.pth", "sitecustomize.py")
SHARED = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/run/lock", "/dev/mqueue", "/", "/etc", "/usr/lib", str(Path.home()))
SYSV_KEY = "1380340801"  # 0x52465441 of attack 52
HANG = 60  # seconds that only a hang exceeds
SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of what a descendant leaves, so that nothing gets out of its tree."""
    assert ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def processes() -> dict[int, tuple[str, str, int]]:
    """Of each process of the host: name, state, parent."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text(errors="replace")
        except OSError:
            continue
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        found[int(folder.name)] = (name, rest[0], int(rest[1]))
    return found


def descendants(root: int) -> dict[int, str]:
    """Pids and names of the processes below one, without those that have ended."""
    found, below, all_of_them = {}, {root}, processes()
    while below:
        below = {pid for pid, (_, _, parent) in all_of_them.items() if parent in below}
        found |= {pid: all_of_them[pid][0] for pid in below if all_of_them[pid][1] != "Z"}
    return found


def marked(mark: str = MARK) -> list[int]:
    """Processes of the host of which a thread bears the name that attacks take."""
    found = set()
    for name in glob.glob("/proc/[0-9]*/task/[0-9]*/comm"):  # Path.glob raises where a process ends meanwhile
        try:
            if Path(name).read_text(errors="replace").strip() == mark:
                found.add(int(name.split("/")[2]))
        except OSError:
            continue
    return sorted(found)


def left_files(*folders: Path) -> list[str]:
    """Files that an attack may have left in the host's shared folders or in these."""
    places = {Path(place) for place in SHARED} | set(folders)
    return sorted(
        str(file) for place in places if os.access(place, os.R_OK) for name in NAMES for file in place.glob(name)
    )


def shared_memory() -> list[str]:
    """Kinds of System V objects that bear the attacks' key."""
    kinds = ("shm", "sem", "msg")
    return [kind for kind in kinds if SYSV_KEY in Path(f"/proc/sysvipc/{kind}").read_text().split()]


def listening(port: int) -> bool:
    """Whether anything on the host listens on this TCP port."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in lines)


def soon(found, what: str):
    """What ``found()`` returns once that is true; fails after a minute, which is a hang, with ``what``."""
    deadline = time.monotonic() + HANG
    while not (value := found()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return value
