"""launch/ray.sh: real Ray heads that coexist and are stopped one by one."""

import os
import subprocess
from pathlib import Path

import pytest
from listeners import beyond_loopback, listening

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
        env={"PATH": os.environ["PATH"], "RFT_STACK": "cpu", "RUN_DIR": str(tmp_path / name)} | environment,
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
        [ROOT / ".venv/bin/python", "-c", CLIENT],
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
