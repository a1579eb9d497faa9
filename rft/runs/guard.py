"""End what a launcher has started once the launcher is gone, and name what stands still. Runs beside every launch.

    python -m rft.runs.guard RUN_DIR LAUNCHER_PID        until SIGTERM, which the launcher sends at its own end

A launcher that ends by SIGKILL (a scheduler, the out-of-memory killer) cannot end Ray, trainer and engines. The guard,
in a session of its own, then does, on this machine: SIGTERM to every process that carries the run's mark
(`rft.runs.memory`), SIGKILL to what is left, and the reason into train.log and run.json. On other nodes Ray ends the
actors of a driver that is gone. The kernel's PR_SET_PDEATHSIG would not do: Ray's daemons are not the launcher's
children, and it is about the thread that forked.

A process of the run in state T (SIGSTOP) lets the others wait for ever. It is named after a minute, and ends the run
after `STALL_LIMIT` seconds (default 600; 0: never). What a suspended launcher (Ctrl-Z) suspends as well does not count.
"""

import argparse
import contextlib
import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

from rft.hooks.environment import LIMIT, stall_limit
from rft.record.files import append_lines
from rft.runs import stopped
from rft.runs.gpu_processes import command_of, role_of
from rft.runs.memory import environment_of, marked_processes

PERIOD_SECONDS = 1.0
SCAN_SECONDS = 5.0  # between looks at all processes, which cost some milliseconds
TERM_SECONDS = 8.0  # what a process has to end in good order
KILL_SECONDS = 20.0  # a process within a driver call takes its time
NAMED_SECONDS = 60.0
RAY_FOLDER = "RFT_RAY_DIR"  # in the environment of a cluster of the launcher's own: its temporary folder
ENDED_BY_GUARD = signal.SIGUSR2  # to the launcher, which then ends the run with status 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("launcher", type=int, help="process id of the launcher")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    os.setsid()  # neither a signal to the launcher's group nor the end of its terminal reaches the guard
    print("ready", flush=True)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the launcher reads no further
    watch(args.run_dir, args.launcher, stall_limit())
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_run(args.run_dir, args.launcher)


def watch(run_dir: Path, launcher: int, limit: float) -> None:
    """Until the launcher is gone. A process id that the kernel gives out again has another start time."""
    started, still, next_scan = stat(launcher)[1], Still(limit), 0.0
    while stat(launcher)[1] == started != 0:
        if time.monotonic() >= next_scan:
            next_scan = time.monotonic() + min(SCAN_SECONDS, still.named / 4)
            for message in still.look(run_dir, launcher):
                say(run_dir, message)
            if still.over:
                end(launcher, ENDED_BY_GUARD)
                for pid in still.told:
                    end(pid, signal.SIGKILL)  # no other signal reaches it
                stopped.note(run_dir, "stopped_process", still.over, 1)
                still = Still(0.0)
        time.sleep(min(PERIOD_SECONDS, still.named / 4))


class Still:
    """What of a run is stopped, over several looks.

    Args:
        limit: seconds after which a stopped process ends the run; 0: never. It is named after a minute, or half of
            the limit where that is less.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.named = min(NAMED_SECONDS, limit / 2 or NAMED_SECONDS)
        self.seconds: dict[int, float] = {}  # by process: how long it has been stopped
        self.told: set[int] = set()
        self.looked = time.monotonic()
        self.over = ""  # why the run must end

    def look(self, run_dir: Path, launcher: int) -> list[str]:
        """Messages of this look. A guard that was suspended itself counts none of that time."""
        now = time.monotonic()
        passed, self.looked = min(now - self.looked, 2 * SCAN_SECONDS), now
        suspended = stat(launcher)[0] == "T"  # by the user, who goes on with the run when it suits
        found = [] if suspended else [pid for pid in marked_processes(str(run_dir)) if stat(pid)[0] == "T"]
        messages = [f"process {pid} runs again" for pid in self.told - set(found) if stat(pid)[0]]
        self.told &= set(found)
        self.seconds = {pid: self.seconds[pid] + passed if pid in self.seconds else 0.0 for pid in found}
        for pid, seconds in self.seconds.items():
            if seconds >= self.named and pid not in self.told:
                self.told.add(pid)
                messages.append(self.naming(pid))
            if self.limit and seconds >= self.limit and not self.over:
                self.over = f"{who(pid)} was stopped for {seconds:.0f} s, with nobody to continue it"
                messages.append(ended(self.over, f"launch again; kill -CONT in time, or {LIMIT}=0, lets a run wait"))
        return messages

    def naming(self, pid: int) -> str:
        """That a process stands still, and what to do."""
        left = f"otherwise the run ends in {self.limit - self.named:.0f} s ({LIMIT}={self.limit:.0f}; 0: never)"
        return (
            "warning: a process of the run is stopped, and the others wait for it\n"
            f"  found:  {who(pid)}, in state T for {self.named:.0f} s, as after SIGSTOP\n"
            "  wanted: every process of the run running\n"
            f"  repair: kill -CONT {pid}; {left if self.limit else f'the run waits for it ({LIMIT}=0)'}"
        )


def end_run(run_dir: Path, launcher: int) -> None:
    """End everything that carries the run's mark, keep Ray's logs, and write down why."""
    left = marked_processes(str(run_dir))
    if not left:  # there was nothing to end, so nothing was cut off
        return
    folder = next((place for pid in left if (place := environment_of(pid).get(RAY_FOLDER))), None)
    end_marked(run_dir)
    if folder:
        keep_logs(Path(folder), run_dir / "ray_logs")
    reason = f"the launcher, process {launcher} on {socket.gethostname()}, is gone without a word, as after SIGKILL"
    say(run_dir, ended(reason, "see what killed it (a scheduler, the out-of-memory killer: dmesg), then launch again"))
    stopped.note(run_dir, "launcher_killed", reason, 128 + signal.SIGKILL)


def end_marked(run_dir: Path) -> None:
    """SIGTERM to every process of the run, also those that start meanwhile; SIGKILL to what is left."""
    asked: set[int] = set()
    begun = time.monotonic()
    while (left := marked_processes(str(run_dir))) and time.monotonic() < begun + TERM_SECONDS + KILL_SECONDS:
        late = time.monotonic() > begun + TERM_SECONDS
        for pid in left if late else set(left) - asked:
            end(pid, signal.SIGKILL if late else signal.SIGTERM)
        asked |= set(left)
        time.sleep(0.2)


def end(pid: int, number: signal.Signals) -> None:
    """A signal to a process that may have ended meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def keep_logs(folder: Path, logs: Path) -> None:
    """Move the logs of a Ray cluster whose processes have ended into the run directory; its folder goes."""
    if folder.name.startswith("rft.") and folder.is_dir():
        logs.mkdir(parents=True, exist_ok=True)
        for file in [folder / "start.log", *(folder / "session_latest/logs").glob("*")]:
            if file.is_file():
                shutil.copy(file, logs)
        shutil.rmtree(folder, ignore_errors=True)


def say(run_dir: Path, message: str) -> None:
    """To train.log and the terminal. Neither a full disk nor a terminal that is gone may end the guard."""
    with contextlib.suppress(OSError):
        append_lines(run_dir / "train.log", f"{message}\n")
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)


def ended(reason: str, repair: str) -> str:
    """The last message of a run that the guard has ended."""
    wanted = "a launcher and processes that live and run until the training is done"
    return f"error: the run was ended\n  found:  {reason}\n  wanted: {wanted}\n  repair: {repair}"


def who(pid: int) -> str:
    """A process in words: its role, title, id and node."""
    title = command_of(pid)
    title = title if len(title) <= 60 else f"{title[:60]}…"
    return f"{role_of(pid)} ({title}), pid {pid} on {socket.gethostname()}"


def stat(pid: int) -> tuple[str, int]:
    """(state, start time in the kernel's ticks) of a process; ("", 0) where there is none, or only its zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return ("", 0) if fields[0] in "ZX" else (fields[0], int(fields[19]))


if __name__ == "__main__":
    main()
