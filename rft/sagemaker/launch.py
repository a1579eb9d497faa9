"""A launcher inside a job: what it says is shown and its end kept, and signals are handed on to it."""

import collections
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

LINES = 200  # kept of what it said
LONGEST = 1024  # characters of a job's failure, by SageMaker's rule


class Stop:
    """What SIGTERM and SIGINT do: end a job that prepares itself, hand the first one on to its launcher.

    Args:
        end: what a job does that has nothing to save; gives its exit status.

    Attributes:
        at: when the first came, on the monotonic clock; None before.
        number: of it.
        prepares: nothing would be lost yet by ending at once.
    """

    def __init__(self, end: Callable[["Stop"], int]) -> None:
        self.end = end
        self.at: float | None = None
        self.number = 0
        self.prepares = True
        self.launcher: subprocess.Popen | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self)

    def __call__(self, number: int, _frame: object) -> None:
        if self.at is not None:
            return
        self.at, self.number = time.monotonic(), number
        if self.prepares:
            os._exit(self.end(self))  # an exception would be lost where it comes within a destructor
        if self.launcher:
            self.launcher.send_signal(number)

    def to(self, launcher: subprocess.Popen) -> None:
        """From now on signals go to this process, also one that came before it."""
        self.launcher = launcher
        if self.at is not None:
            launcher.send_signal(self.number)


class Launcher:
    """A process whose output is printed as it comes, with its last lines kept.

    Args:
        stop: whose signals it gets; None for a part of Ray's cluster, which a save needs to its end.
    """

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str], stop: Stop | None) -> None:
        self.lines: collections.deque[str] = collections.deque(maxlen=LINES)
        if stop:
            stop.prepares = False
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # a Ctrl-C on the terminal comes once, through `stop`
        )
        if stop:
            stop.to(self.process)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            self.lines.append(line.rstrip("\n"))

    def ended(self, seconds: float) -> bool:
        """Whether it has ended, waited for so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.returncode is not None

    def stop(self, seconds: float) -> None:
        """End it in good order, killed after so long."""
        self.process.terminate()
        if not self.ended(seconds):
            self.process.kill()

    def said_last(self) -> str:
        """Its last message, `error: …` where there is one, of at most `LONGEST` characters."""
        self.reader.join(5)  # what it left running may hold the pipe
        lines = [line for line in self.lines if line.strip()]
        errors = [at for at, line in enumerate(lines) if line.startswith("error: ")]
        if errors:
            return "\n".join(lines[errors[-1] :])[:LONGEST]
        return "\n".join(lines)[-LONGEST:]


def environment_of(given: dict[str, str], run: Path, cache: Path, seconds: int) -> dict[str, str]:
    """The launcher's environment.

    Args:
        given: the submission's variables.
        run: the run's directory.
        cache: what can be made again.
        seconds: that it may take to save after SIGTERM.
    """
    return os.environ | given | {"RUN_DIR": str(run), "CACHE_ROOT": str(cache), "SAVE_SECONDS": str(seconds)}


def say(text: str) -> None:
    """Print a line, also from a signal's handler, which may come in the middle of a `print`."""
    os.write(1, f"sagemaker: {text}\n".encode(errors="replace"))
