"""What one program may use, and the error where a machine cannot hold it to that."""

import os
import resource
import stat
from dataclasses import dataclass
from pathlib import Path

CPU_SECONDS = 3600  # the kernel's own limit, for a program whose server hangs; the server's are far below


class IsolationError(RuntimeError):
    """This machine cannot isolate a program, or a sandbox could not be started: never the program's doing."""


@dataclass(frozen=True)
class Limits:
    """What one program may use."""

    memory_bytes: int = 1 << 30  # address space
    tmp_bytes: int = 64 << 20  # files in /tmp, all together
    processes: int = 64  # threads; the program may start no other process
    open_files: int = 128
    output_bytes: int = 8 << 20  # printed on stdout and stderr together


def ours(folder: Path) -> None:
    """Check a folder in the temporary one, where other users could have made it before us.

    Raises:
        IsolationError: another user made it or may write there
    """
    about = folder.lstat()
    if about.st_uid != os.geteuid() or about.st_mode & 0o022 or not stat.S_ISDIR(about.st_mode):
        found = f"uid {about.st_uid}, mode {about.st_mode & 0o7777:o}"
        raise IsolationError(f"{folder} is not ours alone ({found}): set TMPDIR to another folder")


def resource_limits(limits: Limits) -> list[tuple[int, int]]:
    """Pairs of a kind (RLIMIT_…) and the most that the program may have, for setrlimit(2)."""
    return [
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_FSIZE, limits.tmp_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ]
