"""Where the meeting points of process groups listen."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from listeners import decoded, is_beyond, listeners_of
from ports import free_port
from torch.distributed import TCPStore

from rft.hooks import loopback

SECONDS = timedelta(seconds=30)


@pytest.mark.parametrize(
    ("url", "environment", "wanted"),
    [
        ("tcp://127.0.0.1:29500", {}, "loopback://127.0.0.1:29500"),
        ("tcp://10.0.0.7:29500", {}, "tcp://10.0.0.7:29500"),
        ("tcp://[fd00::7]:29500", {}, "tcp://[fd00::7]:29500"),
        ("file:///tmp/meet", {}, "file:///tmp/meet"),
        ("env://", {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}, "loopback://127.0.0.1:29500"),
        ("env://", {"MASTER_ADDR": "node7", "MASTER_PORT": "29500"}, "env://"),
        ("env://", {}, "env://"),
        (
            "env://",
            {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True"},
            "env://",
        ),
    ],
)
def test_only_a_meeting_point_of_this_machine_is_changed(monkeypatch, url, environment, wanted):
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert loopback.init_method(url) == wanted


def test_a_store_listens_at_its_address_alone():
    """torch's own listens everywhere, whatever its address: what the test would miss without it."""

    def places(port: int) -> list[str]:
        return [place for place, _ in listeners_of([os.getpid()]) if place.endswith(f":{port}")]

    port, stock = free_port(), free_port()
    with ThreadPoolExecutor() as pool:  # the first waits for the second
        ranks = [pool.submit(loopback.store, "127.0.0.1", port, rank, 2, SECONDS) for rank in range(2)]
        server, client = (rank.result() for rank in ranks)
    server.set("key", "value")
    assert client.get("key") == b"value"
    assert places(port) == [f"127.0.0.1:{port}"]
    everywhere = TCPStore("127.0.0.1", stock, 1, is_master=True, timeout=SECONDS)
    (place,) = places(stock)
    assert is_beyond(place)
    del everywhere


def test_a_single_rank_does_not_need_the_port_that_was_chosen_for_it():
    """vLLM chooses it seconds before it listens; a second run on the machine had taken it in between."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        store = loopback.store("127.0.0.1", port, 0, 1, SECONDS)
        store.set("key", "value")
        assert store.get("key") == b"value" and store.port != port
        with pytest.raises(OSError, match="already in use"):
            loopback.store("127.0.0.1", port, 0, 2, SECONDS)


def test_entries_of_proc_net_are_read():
    assert decoded("0100007F:1F90") == "127.0.0.1:8080"
    assert decoded("00000000000000000000000000000000:0016") == ":::22"
    beyond = {"127.0.0.1:1": False, "::1:1": False, "::ffff:127.0.0.1:1": False, "0.0.0.0:1": True, ":::1": True}
    assert {place: is_beyond(place) for place in beyond} == beyond
