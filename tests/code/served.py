"""A code server of a test's own: a process on a free port, at a level of isolation, as a user."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import host_watch
from attack_case import MARKED, Attack
from ports import free_port

from rft.code_server.limits import BODY_BYTES

ROOT = Path(__file__).resolve().parents[2]
USER = 61_234  # an ordinary user that owns nothing
HONEST = """\
try:
    open("/proc/self/comm", "w").write("rft-neighbour")
    open("/tmp/rft_attack_neighbour", "w").write("neighbour")
except OSError:
    pass
import json, math, time
def f(x):
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    return json.loads(json.dumps({"x": x + math.floor(1.5)}))
"""
HONEST_TESTS = (
    "assert f(1) == {'x': 2}",
    "value = f(2)\nassert value['x'] == 3",
    "assert f(3) == {'x': 5}",
    "assert f(4)['x'] == 5",
)
HONEST_RESULTS = [1, 1, 0, 1]
HARMLESS = """\
import os
def f(x):
    try:
        os.kill({pid}, 0)
    except OSError:
        return "no"
    return "yes"
"""


# In a mount namespace of its own, a folder $1 that others may not enter is an empty one that holds $2.
OPENED = """\
set -eu
here=$3; mkdir "$here"; mount --bind "$1" "$here"; mount -t tmpfs -o mode=755 none "$1"
mkdir -p "$2"; mount --bind "$here/${2#"$1"/}" "$2"; shift 3; exec "$@"
"""


@dataclass
class Served:
    """A code server that runs."""

    port: int
    level: str
    user: int
    process: subprocess.Popen
    folder: Path  # outside of every sandbox: the server's TMPDIR and working directory, log, the host's secret
    listeners: dict[str, str]
    door: socket.socket
    resting: int = 0  # processes of a server without work
    kept: tuple[str, ...] = ()  # names in its TMPDIR then: its copy of Python
    others: frozenset[str] = frozenset()  # files of the host that were there before it and look like an attack's

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, body: dict | bytes, seconds: float = host_watch.HANG) -> tuple[int, dict]:
        """Status and answer of a request."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=seconds) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            return error.code, {"detail": text}
        except urllib.error.URLError as error:
            # The server refuses by the head alone and closes; who still sends then may not see the answer.
            if isinstance(error.reason, ConnectionError) and len(data) > BODY_BYTES:
                return 413, {"detail": str(error)}
            raise

    def judge(self, program: str, tests, *, seconds: float = 5.0, setup: str = "", entry_point: str | None = "f"):
        """Status and answer of `/test_program`."""
        body = {"program": program, "tests": list(tests), "max_execution_time": seconds, "setup": setup}
        return self.post("/test_program", body | ({"entry_point": entry_point} if entry_point else {}))

    def filled(self, text: str, secret: str) -> str:
        """A text of an attack with what is known only now."""
        for name, value in self.listeners.items():
            text = text.replace(f"{{{name}}}", value)
        return text.replace("{host}", str(self.folder)).replace("{secret}", secret)

    def attack(self, attack: Attack) -> tuple[int, dict]:
        """Status and answer of an attack's request."""
        secret = f"secret-{secrets.token_hex(16)}"
        (self.folder / "secret").write_text(secret)
        program = MARKED + self.filled(attack.program, "")
        tests = [self.filled(test, secret) for test in attack.tests]
        return self.judge(program, tests, seconds=attack.seconds, setup=attack.setup, entry_point=attack.entry_point)

    def honest(self) -> tuple[int, list]:
        """Status and results of an honest job, wrong in its third test."""
        status, answer = self.judge(HONEST, HONEST_TESTS)
        return status, answer.get("results", answer)

    def beside(self):
        """Start an honest job; the function that is returned waits for its status and results."""
        found = []
        thread = threading.Thread(target=lambda: found.append(self.honest()))
        thread.start()

        def answer():
            thread.join()
            return found[0]

        return answer

    def left(self) -> dict[str, object]:
        """What is on the host that was not there before; empty once all is removed."""
        below = host_watch.descendants(os.getpid())
        traces = {
            "marked processes": host_watch.marked(),
            "processes": below if len(below) != self.resting else (),
            "files": sorted(self.suspects() - self.others),
            "left": [name for name in ("left", "cwd/left") if (self.folder / name).exists()],
            "temporary files": sorted(set(self.files()) - set(self.kept)),
            "shared memory": host_watch.shared_memory(),
            "sockets": host_watch.listening(int(self.listeners["free_port"])),
        }
        return {name: trace for name, trace in traces.items() if trace}

    def suspects(self) -> frozenset[str]:
        """Files on the host that look like an attack's."""
        return frozenset(host_watch.left_files(self.folder, self.folder / "tmp", self.folder / "cwd"))

    def files(self) -> tuple[str, ...]:
        """Names in the server's TMPDIR and working directory."""
        return tuple(file.name for place in ("tmp", "cwd") for file in (self.folder / place).iterdir())

    def nothing_left(self) -> None:
        """Wait until nothing is left; fail and say what is."""
        deadline = time.monotonic() + host_watch.HANG
        while found := self.left():
            assert time.monotonic() < deadline, found
            time.sleep(0.02)

    def log(self) -> str:
        """What the server wrote."""
        return (self.folder / "server.log").read_text()[-4000:]


def start(level: str, as_user: bool, listeners: dict[str, str], *options: str) -> Served:
    """Start a server and wait until it answers; it has served an honest job then and is at rest."""
    host_watch.adopt_orphans()
    folder = Path(tempfile.mkdtemp(prefix="rft-code-"))
    for name in ("", "tmp", "cwd"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name).chmod(0o755)
    user = USER if as_user and not os.getuid() else os.getuid()  # who is not root is the ordinary user
    for name in ("tmp", "cwd"):
        os.chown(folder / name, user, -1)
    door = socket.socket(socket.AF_UNIX)  # attack 54 knocks here; open as long as the server is known
    door.bind(str(folder / "socket"))
    door.listen()
    (folder / "socket").chmod(0o777)
    port = free_port()
    command = [sys.executable, "-m", "rft.code_server", "--port", str(port), "--isolation", level, *options]
    if user != os.getuid():
        command = as_ordinary_user(command, folder)
    environment = os.environ | {"TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(ROOT), "HOME": str(folder / "cwd")}
    with open(folder / "server.log", "w") as log:
        process = subprocess.Popen(command, cwd=folder / "cwd", env=environment, stdout=log, stderr=log)
    ports = {"server_port": str(port), "free_port": str(free_port())}
    served = Served(port, level, user, process, folder, listeners | ports, door)
    served.others = served.suspects()  # no program has run
    try:
        host_watch.soon(lambda: process.poll() is not None or answers(served), "the server does not answer")
        assert process.poll() is None, served.log()
        # Before anything that would hurt the host: a program cannot signal the server.
        status, answer = served.judge(HARMLESS.replace("{pid}", str(process.pid)), ["assert f(0) == 'no'"])
        assert (status, answer.get("results"), answer.get("isolation")) == (200, [1], level), (answer, served.log())
        assert served.honest() == (200, HONEST_RESULTS), served.log()
        served.resting, served.kept = at_rest(), served.files()
    except BaseException:
        stop(served)
        raise
    return served


def as_ordinary_user(command: list[str], folder: Path) -> list[str]:
    """The command, run by root, for `USER`, who may read the interpreter in it wherever that lies."""
    command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *command]
    interpreter = Path(os.path.realpath(sys._base_executable))
    closed = [place for place in interpreter.parents if not place.stat().st_mode & 0o001]
    if closed:
        below = closed[-1] / interpreter.relative_to(closed[-1]).parts[0]
        script = ["bash", "-c", OPENED, "as-user", str(closed[-1]), str(below), str(folder / "home")]
        command = ["unshare", "--mount", *script, *command]
    return command


def at_rest() -> int:
    """How many processes are below this one when that has not changed for a second."""
    counts = [0]
    deadline = time.monotonic() + host_watch.HANG
    while len(counts) < 20 or len(set(counts[-20:])) > 1:
        assert time.monotonic() < deadline, "the server does not come to rest"
        counts.append(len(host_watch.descendants(os.getpid())))
        time.sleep(0.05)
    return counts[-1]


def answers(served: Served) -> bool:
    """Whether it answers `/health`."""
    try:
        with urllib.request.urlopen(served.url + "/health", timeout=10) as answer:
            return json.load(answer)["isolation"] == served.level
    except OSError:
        return False


def stop(served: Served) -> None:
    """SIGTERM; then nothing of it is left."""
    before = host_watch.descendants(served.process.pid)
    served.process.terminate()
    try:
        served.process.wait(host_watch.HANG)
    finally:
        served.process.kill()
    host_watch.soon(lambda: not set(before) & set(host_watch.descendants(os.getpid())), "processes of the server left")
    assert not served.kept or set(served.files()) == set(served.kept)
    served.door.close()
    shutil.rmtree(served.folder)
