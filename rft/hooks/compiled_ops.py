"""Ops that DeepSpeed compiles at their first use: never wait for a compiler that was killed."""

import os
import time
from pathlib import Path

from torch.utils.cpp_extension import _get_build_directory


def drop_abandoned_lock(op: str) -> bool:
    """Remove the build lock of the DeepSpeed op `op` ("fused_adam") if no process holds it; True if one was removed.

    torch takes the lock by creating a file, at each load, compiled before or not, and waits for it without an end
    (torch/utils/file_baton.py). A run that is killed there would stop every later one. The owner keeps the file open,
    so a lock that nobody has open is left over; it is looked at twice, as the owner closes it just before removing it.
    """
    lock = Path(_get_build_directory(op, verbose=False)) / "lock"
    for pause in (0.2, 0):
        if not lock.exists() or _open_somewhere(lock):
            return False
        time.sleep(pause)
    lock.unlink(missing_ok=True)
    print(f"{op}: removed {lock}, left over from a run that was killed", flush=True)
    return True


def _open_somewhere(file: Path) -> bool:
    """Whether a process of this machine and of this user has `file` open; into those of others we may not look."""
    wanted = file.stat()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            for fd in (process / "fd").iterdir():
                if os.path.samestat(fd.stat(), wanted):
                    return True
        except (FileNotFoundError, PermissionError):
            continue  # it ended, or closed a file, while we looked; or it is not ours
    return False
