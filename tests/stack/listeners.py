"""What the processes of a run listen on, from /proc."""

import contextlib
import ipaddress
import os
import sys
from pathlib import Path

from rft.runs.memory import marked_processes

LISTEN = "0A"


def listening(run_dir: Path) -> list[tuple[str, str]]:
    """(address:port, process) of every TCP listener of the processes that carry a run's mark; see rft.runs.memory."""
    return listeners_of(marked_processes(str(run_dir)))


def beyond_loopback(run_dir: Path) -> list[tuple[str, str]]:
    """Those of `listening` that another machine can reach."""
    return [found for found in listening(run_dir) if is_beyond(found[0])]


def is_beyond(place: str) -> bool:
    address = ipaddress.ip_address(place.rpartition(":")[0])
    return not (getattr(address, "ipv4_mapped", None) or address).is_loopback


def listeners_of(processes: list[int]) -> list[tuple[str, str]]:
    """(address:port, "pid command line") of every TCP listener that one of the processes has open."""
    places = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN:
                places[f"socket:[{fields[9]}]"] = decoded(fields[1])
    found = []
    for pid in processes:
        links = set()
        with contextlib.suppress(OSError):  # it ended meanwhile
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as what lists our own
                    links.add(os.readlink(fd))
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [(places[link], f"{pid} {command[:300]}") for link in links if link in places]
    return found


def decoded(local: str) -> str:
    """address:port of an entry of /proc/net/tcp or tcp6: words of 32 bits in the machine's byte order, in hex."""
    words, port = local.split(":")
    raw = b"".join(int(words[n : n + 8], 16).to_bytes(4, sys.byteorder) for n in range(0, len(words), 8))
    return f"{ipaddress.ip_address(raw)}:{int(port, 16)}"
