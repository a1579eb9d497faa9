"""Starts the process of one sandbox at a level of isolation, and ends it."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
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
        theirs_in, self.write_fd = os.pipe()
        self.read_fd, theirs_out = os.pipe()
        self.output_fd, theirs_print = os.pipe()
        self._info, theirs_info = os.pipe()
        rules, theirs_rules = os.pipe()
        self.level = level
        self.pid = 0  # of the program itself, in the server's eyes; known when the sandbox stands
        self._cpu, self._status = 0.0, None
        self._release_uid = lambda: None
        options = {}
        if os.geteuid() == 0 and level != "none":
            uid, self._release_uid = uids.take(staged.root / "uids")
            options = {"user": uid, "group": uid, "extra_groups": [], "umask": 0o077}
        try:
            if level == "namespaces":
                # A pipe holds 64 KiB, the filter has two: it is written before somebody reads.
                os.write(theirs_rules, seccomp.program())
                os.close(theirs_rules)
                argv = _bwrap(staged, role, limits, theirs_info, rules)
                environment = {"LD_LIBRARY_PATH": str(staged.root / "bwrap/lib")}
                options["pass_fds"] = (theirs_info, rules)
            elif level == "landlock":
                argv = [str(staged.root / staged.interpreter), *_python(str(staged.root), staged, role, level, limits)]
                environment = _environment(str(staged.root), "/nonexistent")
            else:
                argv = [sys.executable, *_python(str(staged.root), staged, role, level, limits)]
                environment = _environment(sys.base_prefix, "/tmp")
            self._child = subprocess.Popen(
                argv,
                stdin=theirs_in,
                stdout=theirs_out,
                stderr=theirs_print,
                env=environment,
                cwd="/",
                start_new_session=True,
                **options,
            )
        except BaseException:
            for fd in (self.write_fd, self.read_fd, self.output_fd, self._info):
                os.close(fd)
            self._release_uid()
            raise
        finally:
            for fd in (theirs_in, theirs_out, theirs_print, theirs_info, rules):
                os.close(fd)
            if level != "namespaces":
                os.close(theirs_rules)
        self.pidfd = os.pidfd_open(self._child.pid)
        if level == "landlock":
            code = seccomp.program(same_user=self._child.pid, threads=os.geteuid() == 0)
            os.write(self.write_fd, len(code).to_bytes(4, "big") + code)

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
        for fd in (self.read_fd, self.write_fd, self.output_fd, self.pidfd, self._info):
            os.close(fd)
        self._release_uid()

    def _wait(self, flags: int) -> None:
        pid, status, usage = os.wait4(self._child.pid, flags)
        if pid:
            self._status = self._child.returncode = os.waitstatus_to_exitcode(status)
            self._cpu = max(self._cpu, usage.ru_utime + usage.ru_stime)


def _python(root: str, staged: Staged, role: str, level: str, limits: Limits) -> list[str]:
    most = ",".join(f"{kind}={number}" for kind, number in resource_limits(limits))
    folder = f"{root}/{staged.code}"
    return ["-I", "-S", "-X", "utf8", f"{folder}/boot.pyc", folder, role, level, most]


def _environment(root: str, home: str) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": f"{root}/lib", "PATH": f"{root}/bin", "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"}


def _bwrap(staged: Staged, role: str, limits: Limits, info: int, rules: int) -> list[str]:
    """No /proc, no /sys, no writable folder but /tmp: what Python does not need is not there."""
    loader = ["--symlink", f"{ROOT}/lib/{Path(staged.loader).name}", staged.loader] if staged.loader else []
    return [
        str(staged.root / staged.bwrap),
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
        *("--as-pid-1", "--cap-drop", "ALL", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"),
        *("--ro-bind", str(staged.root), ROOT, *loader),
        *(word for name in ("null", "urandom") for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")),
        *("--size", str(limits.tmp_bytes), "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp", "--clearenv"),
        *(word for pair in _environment(ROOT, "/tmp").items() for word in ("--setenv", *pair)),
        *("--info-fd", str(info), "--seccomp", str(rules)),
        f"{ROOT}/{staged.interpreter}",
        *_python(ROOT, staged, role, "namespaces", limits),
    ]
