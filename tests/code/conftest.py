"""One code server a setting: level of isolation, and root or an ordinary user."""

import os
import socket
import subprocess
import sys

import pytest
import served

SETTINGS = ("namespaces", "landlock", "namespaces as a user", "landlock as a user")
# RFT_CODE_SETTINGS=all runs all four: the first and the last are unlike in both.
RUN = SETTINGS if os.environ.get("RFT_CODE_SETTINGS") == "all" else (SETTINGS[0], SETTINGS[-1])


@pytest.fixture(scope="session")
def listeners():
    """Sockets on the host that no program may reach: TCP, UDP, an abstract one."""
    made = {"port": socket.socket(), "udp_port": socket.socket(type=socket.SOCK_DGRAM)}
    for each in made.values():
        each.bind(("127.0.0.1", 0))
    made["port"].listen()
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0rft-attack-{os.getpid()}")
    abstract.listen()
    yield {name: str(each.getsockname()[1]) for name, each in made.items()} | {"abstract": f"rft-attack-{os.getpid()}"}
    for each in (*made.values(), abstract):
        each.close()


@pytest.fixture(scope="session", params=RUN)
def server(request, listeners, tmp_path_factory):
    """A code server at rest. Nothing of it is left in the end."""
    level, as_user = request.param.split()[0], request.param.endswith("user")
    if as_user and not os.getuid():
        can = served.as_ordinary_user([sys.executable, "-c", "import decimal"], tmp_path_factory.mktemp("as-user"))
        tried = subprocess.run(can, capture_output=True, text=True)
        if tried.returncode:
            pytest.skip(f"user {served.USER} cannot run {sys.executable}: {tried.stderr[-300:]}")
    made = served.start(level, as_user, listeners)
    yield made
    served.stop(made)
