"""User ids that belong to nobody, one for a sandbox at a time, where the server is root.

The kernel counts threads for a user, and counts none for root.
"""

import fcntl
import os
import pwd
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rft.code.isolation.limits import IsolationError, ours

FIRST, COUNT = 58000, 2000  # above the users that people add, below those that systemd hands out

_released: list[int] = []  # still locked, for the next sandbox of this process


def take() -> tuple[int, Callable[[], None]]:
    """A user id that no other sandbox of this machine has, and what gives it back; locked until this process ends.

    Raises:
        IsolationError: none is free, or the folder of the locks is not ours alone
    """
    if _released:
        uid = _released.pop()
        return uid, partial(_released.append, uid)
    folder = Path(tempfile.gettempdir()) / "rft-uids"
    folder.mkdir(exist_ok=True, mode=0o700)
    ours(folder)
    if not mapped(FIRST, Path("/proc/self/uid_map").read_text()):
        raise IsolationError(
            f"root of this container has no user ids from {FIRST} on (/proc/self/uid_map): start the server as a user "
            "other than root, or give the container 65536 ids"
        )
    for uid in range(FIRST, FIRST + COUNT):
        fd = os.open(folder / str(uid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        if _somebody(uid):
            os.close(fd)
            continue
        return uid, partial(_released.append, uid)
    raise IsolationError(f"no user id is free from {FIRST} to {FIRST + COUNT - 1}: {folder}")


def mapped(uid: int, uid_map: str) -> bool:
    """Whether a user id exists here; `uid_map` is the text of /proc/self/uid_map (user_namespaces(7))."""
    ranges = [(int(first), int(count)) for first, _, count in map(str.split, uid_map.splitlines())]
    return any(first <= uid < first + count for first, count in ranges)


def _somebody(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
