"""launch/node.sh and launch/nodes.sh: what a node derives from its environment, what it refuses; see tests/clusters."""

import os
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
from launching import body

ROOT = Path(__file__).resolve().parents[2]


def node(*words: str, **variables: str) -> subprocess.CompletedProcess:
    """`launch/node.sh WORDS`, which must refuse."""
    environment = {"PATH": os.environ["PATH"], "RFT_STACK": "cpu"} | variables
    command = ["bash", str(ROOT / "launch/node.sh"), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def address() -> tuple[str, str]:
    """(an IPv4 address of this machine beyond the loopback, its interface)."""
    for interface, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family == socket.AF_INET and not one.address.startswith("127."):
                return one.address, interface
    pytest.skip("this machine has no address beyond the loopback")


@pytest.mark.parametrize(
    ("words", "variables", "found"),
    [
        ([], {}, "found:  nothing"),
        (["head"], {}, "found:  NODE_ADDRESS="),
        (["head"], {"NODE_ADDRESS": "127.0.0.1"}, "found:  NODE_ADDRESS=127.0.0.1"),
        (["head"], {"NODE_ADDRESS": "192.0.2.1"}, "found:  192.0.2.1"),
        (["head"], {"NODE_ADDRESS": "192.0.2.1", "NODE_CPUS": "all"}, "found:  NODE_CPUS=all"),
        (["head"], {"NODE_ADDRESS": "192.0.2.1", "JOB_ID": "a b"}, "found:  JOB_ID=a b"),
        (["head"], {"NODE_ADDRESS": "192.0.2.1", "NETWORK": "carrier"}, "found:  NETWORK=carrier"),
        (["worker"], {"NODE_ADDRESS": "192.0.2.1"}, "wanted: HOST:PORT"),
        (["driver", "2"], {}, "wanted: GPUS HEAD:PORT COMMAND"),
    ],
)
def test_what_a_node_cannot_be_made_of_is_refused_at_once(words, variables, found):
    done = node(*words, **variables)
    assert done.returncode == 1 and found in done.stderr and "repair: " in done.stderr


def test_a_head_that_nobody_has_started_is_named():
    done = node("driver", "2", "127.0.0.1:9", "true", RAY_SECONDS="1")
    assert done.returncode == 1 and "found:  nothing that answers at 127.0.0.1:9, after 1 s" in done.stderr


def settings(tmp_path, address: str, **variables: str) -> list[str]:
    """What `node_settings` derives: port, folder, and what Ray's workers on this node inherit."""
    names = ("RAY_PORT", "RAY_DIR", "VLLM_HOST_IP", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    script = "node_settings; " + "; ".join(f'echo "${name}"' for name in names)
    environment = {"PATH": os.environ["PATH"], "RFT_STACK": "cpu", "NODE_ADDRESS": address, "NODE_TMP": "/tmp"}
    done = subprocess.run(
        ["bash", body(tmp_path, script)], env=environment | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_ports_and_folder_follow_from_the_job_s_id(tmp_path, address):
    ip, interface = address
    assert settings(tmp_path, ip, JOB_ID="7") == ["20070", "/tmp/rft.7", ip, interface, f"={interface}"]
    ports = [int(settings(tmp_path, ip, JOB_ID=job)[0]) for job in ("4711", "4712", "job-of-mine")]
    assert ports[1] - ports[0] == 10 and all(20000 <= port < 32000 and port % 10 == 0 for port in ports)
    port, folder, *_ = settings(
        tmp_path, ip, JOB_ID="a-long-name-of-a-training-job", RAY_PORT="7000", NODE_TMP="/" + "x" * 40
    )
    assert port == "7000" and folder.startswith("/tmp/rft.") and len(folder) <= 41
