"""launch/ray.sh: real Ray heads that coexist and are stopped one by one."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from listeners import beyond_loopback, listening
from ports import free_port

from rft.record.environment import stack_name
from rft.runs.gpu_processes import command_of
from rft.runs.memory import marked_processes

pytest.importorskip("ray")
pytestmark = pytest.mark.stack

ROOT = Path(__file__).resolve().parents[2]
HOLD = 'begin_run; start_ray 3; wait_for_ray; echo "$RAY_ADDRESS $RAY_DIR $RAY_PID"; run sleep 300'
CLIENT = """
import ray
ray.init(logging_level="ERROR")
print(ray.cluster_resources()["GPU"], ray.get_runtime_context().gcs_address)
"""


def start(tmp_path, name, body, **environment):
    script = tmp_path / f"{name}.sh"
    script.write_text(f'source "{ROOT}/launch/common.sh"\n{body}\n')
    return subprocess.Popen(
        ["bash", script],
        env={"PATH": os.environ["PATH"], "RFT_STACK": stack_name(), "RUN_DIR": str(tmp_path / name)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes_of(ray_dir):
    """Command lines of running processes that name the folder of a cluster."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes()
        except OSError:
            continue
        if ray_dir.encode() in line:
            found.append(line[:60])
    return found


def cluster(process):
    """Address, folder and pid that a launcher with the body HOLD prints."""
    process.stdout.readline()  # run directory
    return process.stdout.readline().split()


def client(address):
    return subprocess.run(
        [sys.executable, "-c", CLIENT],
        env={"PATH": os.environ["PATH"], "RAY_ADDRESS": address, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_two_clusters_on_the_loopback_coexist_and_each_launcher_stops_its_own(tmp_path):
    first, second = start(tmp_path, "first", HOLD), start(tmp_path, "second", HOLD)
    try:
        address_1, dir_1, _ = cluster(first)
        address_2, dir_2, _ = cluster(second)
        assert address_1 != address_2 and dir_1 != dir_2
        for address in (address_1, address_2):
            result = client(address)
            assert result.stdout.split() == ["3.0", address], result.stderr
        for run in ("first", "second"):
            # GCS, raylet, object manager, Ray Client, dashboard and its agent, runtime environments, a worker.
            assert len(listening(tmp_path / run)) >= 8
            assert beyond_loopback(tmp_path / run) == []

        first.terminate()
        assert first.wait(timeout=300) == 143
        assert not processes_of(dir_1) and not Path(dir_1).exists()
        assert processes_of(dir_2)
        assert client(address_2).returncode == 0
        assert (tmp_path / "first" / "ray_logs" / "start.log").exists(), "the logs of a failed run are kept"

        # A cluster of somebody else is used where RAY_ADDRESS says so, and left running.
        guest = start(
            tmp_path, "guest", 'begin_run; start_ray 3; wait_for_ray; run echo "at $RAY_ADDRESS"', RAY_ADDRESS=address_2
        )
        out, _ = guest.communicate(timeout=300)
        assert guest.returncode == 0 and "it will not be stopped" in out and f"at {address_2}" in out
        assert client(address_2).returncode == 0
    finally:
        for process in (first, second):
            process.terminate()
            process.wait(timeout=300)
    assert not processes_of(dir_2) and not Path(dir_2).exists()


def test_a_ray_that_cannot_start_says_why(tmp_path):
    body = "begin_run; free_port() { echo 1; }; start_ray 3; wait_for_ray; echo went on"
    process = start(tmp_path, "broken", body)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 1 and "went on" not in out
    assert "Ray did not start" in out and "ray_client_server_port" in out


SERVERS = """
import sys
from pathlib import Path
import ray
from rft.runs.code_server import SERVER
from rft.runs.code_server_nodes import loopback, start
from rft.runs.service import wait
ray.init(logging_level="ERROR")
url, logs = sys.argv[1], Path(sys.argv[2])
print(len(start(url, logs, loopback())), flush=True)
((server, host, isolation),) = start(url, logs, "another machine")
print(host, isolation == wait(SERVER, url, 1)["isolation"], flush=True)
"""


def test_another_node_of_a_cluster_has_a_code_server_which_ends_with_the_driver(tmp_path):
    """Seen from another machine this node is one to serve; seen from here none is left."""
    launcher = start(tmp_path, "run", HOLD)
    try:
        address, ray_dir, _ = cluster(launcher)
        environment = os.environ | {"RAY_ADDRESS": address, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        command = [sys.executable, "-c", SERVERS, f"http://127.0.0.1:{free_port()}", str(tmp_path / "logs")]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.stdout.splitlines()[0] == "0", done.stderr
        assert done.stdout.split()[1:] == [os.uname().nodename, "True"], done.stderr
        assert "serves at " in (tmp_path / "logs" / f"code_server_{os.uname().nodename}.log").read_text()
        deadline = time.monotonic() + 60  # a hang
        while any("rft.code_server" in command_of(pid) for pid in marked_processes(str(tmp_path / "run"))):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        launcher.terminate()
        launcher.wait(timeout=300)
    assert not processes_of(ray_dir)
