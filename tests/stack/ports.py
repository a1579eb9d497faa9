"""Ports for what must be told one before it listens."""

import random
import socket
from pathlib import Path


def free_port() -> int:
    """A port that is free, and that the kernel gives to no process which asks for any.

    The kernel takes those from a range of its own, where a port that was free may be in use before its listener starts.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(max(1024, lowest - 10_000), lowest)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
