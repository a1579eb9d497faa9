"""A process that does nothing, for tests of what the project reads about processes in /proc."""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def sleeping(environment: dict[str, str], name: str = "sleep") -> Iterator[int]:
    """The id of a process of this name with this environment, killed at the end.

    `Popen` returns as soon as exec closes its pipe, and the kernel writes the environment after that: without the
    wait, one read in four on two cores finds it empty.
    """
    process = subprocess.Popen([name, "600"], executable="/bin/sleep", env=environment)
    try:
        while not Path(f"/proc/{process.pid}/environ").read_bytes():
            time.sleep(0.01)
        yield process.pid
    finally:
        process.kill()
        process.wait()
