"""Starts the process of one sandbox at a level of isolation, and ends it."""

import functools
import json
import os
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from rft.code.isolation import seccomp, uids
from rft.code.isolation.limits import Limits, resource_limits
from rft.code.isolation.python import Staged

# The best first. namespaces: bubblewrap, the program sees no process, file or network but its own. landlock: it sees
# processes and the names of files, and can neither open nor signal nor connect to anything. none: all is open to it.
LEVELS = ("namespaces", "landlock", "none")
ROOT = "/python"  # the staged folder, inside


class Process:
    """A started program: the pipes to it, its process id, its end.

    `read_fd` brings frames, after one byte that says that the sandbox stands; `output_fd` what the program prints.
    """

    def __init__(self, level: str, role: str, limits: Limits, staged: Staged):
        self.level = level
        self.pid = 0  # of the program itself, in the server's eyes; known when the sandbox stands
        self._cpu, self._status = 0.0, None
        with ExitStack() as theirs, ExitStack() as held:
            frames_in, self.write_fd = _pipe(theirs, held)
            self.read_fd, frames_out = _pipe(held, theirs)
            self.output_fd, printed = _pipe(held, theirs)
            options = {}
            if os.geteuid() == 0 and level != "none":
                uid, release = uids.take()
                held.callback(release)
                options = {"user": uid, "group": uid, "extra_groups": [], "umask": 0o077}
            if level == "namespaces":
                self._info, info = _pipe(held, theirs)
                rules = _read_end(_filter(), theirs)
                argv, environment = _bwrap(staged, role, limits, info, rules)
                options["pass_fds"] = (info, rules)
            else:
                # A file without a name, made here: after Landlock no file can be opened for writing.
                scratch = theirs.enter_context(tempfile.TemporaryFile(buffering=0)).fileno()
                argv = _python(str(staged.root), staged, role, level, limits, scratch)
                environment = _environment(str(staged.root), "/tmp" if level == "none" else "/nonexistent")
                options["pass_fds"] = (scratch,)
            self._child = subprocess.Popen(
                argv,
                stdin=frames_in,
                stdout=frames_out,
                stderr=printed,
                env=environment,
                cwd="/",
                start_new_session=True,
                **options,
            )
            self.pidfd = os.pidfd_open(self._child.pid)
            held.callback(os.close, self.pidfd)
            if level == "landlock":
                code = seccomp.program(same_user=self._child.pid, threads=os.geteuid() == 0)
                os.write(self.write_fd, len(code).to_bytes(4, "big") + code)
            self._held = held.pop_all()

    def stands(self) -> None:
        """The sandbox is built, the program has had no frame yet."""
        self.pid = json.loads(os.read(self._info, 4096))["child-pid"] if self.level == "namespaces" else self._child.pid
        with suppress(OSError), open(f"/proc/{self.pid}/oom_score_adj", "w") as score:
            score.write("1000")  # the first to die when the machine runs out of memory; where the server may say so

    def cpu_seconds(self) -> float:
        """CPU seconds of the program, ended threads included; it is one process at every level but "none"."""
        if self.pid and self._status is None:
            with suppress(OSError):  # it ended: what it used is known when it is reaped
                self._cpu = max(self._cpu, time.clock_gettime(~self.pid << 3 | 2))  # clock_getcpuclockid(3)
        return self._cpu

    def cause(self) -> str:
        """How it ended, in words; empty while it runs."""
        if self._status is None:
            self._wait(os.WNOHANG)
        if self._status is None:
            return ""
        number = -self._status if self._status < 0 else self._status - 128 if self.level == "namespaces" else 0
        with suppress(ValueError):
            return signal.Signals(number).name
        return f"exit status {self._status}"

    def kill(self) -> None:
        """Kill all of it; does not wait."""
        if self._status is not None:
            return
        self.cpu_seconds()
        with suppress(ProcessLookupError):
            if self.level == "namespaces" and self.pid:
                os.kill(self.pid, signal.SIGKILL)  # first in its namespace: all in there die with it, then bwrap ends
            else:
                os.killpg(self._child.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Wait for the end, close the pipes, give the user id back."""
        if self._status is None:
            self._wait(0)
        self._held.close()

    def _wait(self, flags: int) -> None:
        pid, status, usage = os.wait4(self._child.pid, flags)
        if pid:
            self._status = self._child.returncode = os.waitstatus_to_exitcode(status)
            self._cpu = max(self._cpu, usage.ru_utime + usage.ru_stime)


@functools.cache
def _filter() -> bytes:
    return seccomp.program()


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    read_fd, write_fd = os.pipe()
    reader.callback(os.close, read_fd)
    writer.callback(os.close, write_fd)
    return read_fd, write_fd


def _read_end(data: bytes, stack: ExitStack) -> int:
    """A pipe that holds the data already: it takes 64 KiB, a filter has two."""
    read_fd, write_fd = os.pipe()
    stack.callback(os.close, read_fd)
    os.write(write_fd, data)
    os.close(write_fd)
    return read_fd


def _python(root: str, staged: Staged, role: str, level: str, limits: Limits, scratch: int = -1) -> list[str]:
    most = ",".join(f"{kind}={number}" for kind, number in resource_limits(limits))
    boot = [f"{root}/{staged.code}/boot.pyc", f"{root}/{staged.code}", role, level, most, str(scratch)]
    return [f"{root}/{staged.interpreter}", "-I", "-S", "-X", "utf8", *boot]


def _environment(root: str, home: str) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": f"{root}/lib", "PATH": f"{root}/bin", "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"}


def _bwrap(staged: Staged, role: str, limits: Limits, info: int, rules: int) -> tuple[list[str], dict[str, str]]:
    """No /proc, no /sys, no writable folder but /tmp: what Python does not need is not there."""
    loader = ["--symlink", f"{ROOT}/lib/{Path(staged.loader).name}", staged.loader] if staged.loader else []
    argv = [
        str(staged.root / staged.bwrap),
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
        *("--as-pid-1", "--cap-drop", "ALL", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"),
        *("--ro-bind", str(staged.root), ROOT, *loader),
        *(word for name in ("null", "urandom") for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")),
        *("--size", str(limits.tmp_bytes), "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp", "--clearenv"),
        *(word for pair in _environment(ROOT, "/tmp").items() for word in ("--setenv", *pair)),
        *("--info-fd", str(info), "--seccomp", str(rules)),
        *_python(ROOT, staged, role, "namespaces", limits),
    ]
    return argv, {"LD_LIBRARY_PATH": str(staged.root / "bwrap/lib")}
