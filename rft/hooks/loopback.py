"""Process groups whose ranks are on one machine: out of reach from other machines (docs/security.md)."""

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from urllib.parse import parse_qs, urlsplit

from torch.distributed import TCPStore, constants, register_rendezvous_handler

SCHEME = "loopback"
HOSTS = ("127.0.0.1", "localhost")
# For a process that talks to this machine only; launch/ray.sh sets the same for all of a run. vLLM's address of its own
# host, and the interface where gloo's and NCCL's sockets listen.
THIS_MACHINE = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def init_method(url: str = "env://") -> str:
    """`url` for `torch.distributed.init_process_group`, such that a store at 127.0.0.1 listens there and nowhere else.

    torch's TCPStore listens on every interface, whatever its address, and lets whoever reaches it read and write what
    ranks tell each other, pickles among it. Another address, for ranks on several machines, comes back as it is, and so
    does every address under torchrun, whose agent holds the store.

    Args:
        url: `tcp://HOST:PORT`, or `env://` for MASTER_ADDR and MASTER_PORT.
    """
    place = urlsplit(url)
    host, port = place.hostname, place.port
    if place.scheme == "env":
        host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if place.scheme not in ("tcp", "env") or host not in HOSTS or "TORCHELASTIC_USE_AGENT_STORE" in os.environ:
        return url
    _register()
    return f"{SCHEME}://127.0.0.1:{port}"


@cache
def _register() -> None:
    register_rendezvous_handler(SCHEME, _meet)


def _meet(url: str, timeout: timedelta = constants.default_pg_timeout, **_) -> Iterator[tuple[TCPStore, int, int]]:
    """torch's rendezvous: (store, rank, world size), the latter two from the query, else from the environment."""
    place = urlsplit(url)
    query = parse_qs(place.query)
    rank, size = (int(query.get(name, [os.environ.get(name.upper())])[0]) for name in ("rank", "world_size"))
    yield store(place.hostname, place.port, rank, size, timeout), rank, size


def store(host: str, port: int, rank: int, world_size: int, timeout: timedelta) -> TCPStore:
    """A TCPStore whose server, that of rank 0, listens at `host` alone.

    A group of one rank, whom nobody has to find, takes a port that is free now: vLLM looks for `port` seconds before it
    comes here, and another run on the same machine may have it by then.
    """
    server = {}
    if rank == 0:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port if world_size > 1 else 0))
            listener.listen(socket.SOMAXCONN)
            port = listener.getsockname()[1]
            server = {"master_listen_fd": listener.detach()}  # the store closes it
    return TCPStore(host, port, world_size, is_master=rank == 0, timeout=timeout, **server)
