"""A code server on every other node of a Ray cluster, whose engines ask the one on their own loopback.

    .venv/bin/python -m rft.runs.code_server_nodes URL --logs DIR         until SIGTERM; called by launch/code_server.sh

RAY_ADDRESS names the cluster. The server of this machine is the launcher's own. The others listen on the same port, log
to DIR/code_server_HOST.log on their node, and end with this process. Prints `ready` once all of them answer.
"""

import argparse
import ctypes
import signal
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

from rft.code_server.client import CodeServerError
from rft.hooks.environment import of_this_run
from rft.runs.code_server import SECONDS, SERVER
from rft.runs.service import wait

PR_SET_PDEATHSIG = 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of the server on this machine, http://127.0.0.1:PORT")
    parser.add_argument("--logs", type=Path, required=True, metavar="DIR", help="the run directory")
    args = parser.parse_args()
    asked_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.set())
    import ray

    ray.init(log_to_driver=False, logging_level="ERROR", runtime_env={"env_vars": of_this_run()})
    try:
        servers = start(args.url, args.logs, loopback())
        for _, host, isolation in servers:
            print(f"code server on {host}: {args.url}, isolation {isolation}")
    except (CodeServerError, ray.exceptions.RayError) as error:
        print(
            f"error: a node has no code server\n  found:  {error}\n  wanted: one on the loopback of each node\n"
            "  repair: correct what it says there, or choose a port that is free on all nodes: CODE_SERVER_PORT=PORT",
            file=sys.stderr,
        )
        return 1
    print("ready", flush=True)
    if servers:
        asked_to_end.wait()
        ray.get([server.stop.remote() for server, *_ in servers])
    return 0


def start(url: str, logs: Path, here: str) -> list[tuple[object, str, str]]:
    """(Ray actor, host, isolation) of a server for every loopback of the cluster but `here`, each answering.

    Raises:
        CodeServerError: one of them does not answer.
        ray.exceptions.RayError: a node cannot start it.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actors = {}
    for node in sorted(node["NodeID"] for node in ray.nodes() if node["Alive"]):
        place = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = ray.remote(num_cpus=0)(NodeServer).options(scheduling_strategy=place).remote()
        actors.setdefault(ray.get(actor.loopback.remote()), actor)  # several Ray nodes of one machine share a server
    actors.pop(here, None)
    begun = [(actor, actor.start.remote(url, str(logs))) for actor in actors.values()]
    return [(actor, *ray.get(started)) for actor, started in begun]


def loopback() -> str:
    """Tells apart what has a loopback of its own: machines by their boot, containers by their network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/net').readlink()}"


class NodeServer:
    """A Ray actor with a code server as its child."""

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None

    def loopback(self) -> str:
        return loopback()

    def start(self, url: str, logs: str) -> tuple[str, str]:
        """(host, isolation) of the server once it answers. Raises CodeServerError with the end of its log."""
        import socket

        log = Path(logs, f"code_server_{socket.gethostname()}.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "rft.code_server", "--host", "127.0.0.1", "--port", str(urlsplit(url).port)]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=end_with_parent
            )
        try:
            return socket.gethostname(), wait(SERVER, url, SECONDS, self.process.pid)["isolation"]
        except CodeServerError as error:
            tail = log.read_text(errors="replace").splitlines()[-3:]
            raise CodeServerError(f"{socket.gethostname()}: {error}; {log} ends with: {' '.join(tail)}") from None

    def stop(self) -> None:
        """End the server in good order."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


def end_with_parent() -> None:
    """In the child: SIGTERM when Ray ends the actor, which it does by SIGKILL where this driver is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
