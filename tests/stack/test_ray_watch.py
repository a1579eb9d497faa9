"""rft.hooks.watch on a real Ray cluster of the launcher's, which has no dashboard."""

import asyncio
import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from ranks import fork_context

from rft.hooks.engine_watch import deaths, jobs_of, worker_deaths
from rft.record.environment import stack_name

pytestmark = pytest.mark.stack
ROOT = Path(__file__).resolve().parents[2]
HOLD = 'begin_run; start_ray 3; wait_for_ray; echo "$RAY_ADDRESS"; run sleep 900'
# What vLLM's EngineCore does with --vllm_tensor_parallel_size 2: a Ray job of its own, whose actors are the workers.
DRIVER = """
import os, time, ray
ray.init(logging_level="ERROR", log_to_driver=False)
@ray.remote(num_cpus=0)
class RayWorkerWrapper:
    def pid(self): return os.getpid()
workers = [RayWorkerWrapper.remote() for _ in range(2)]
print(*ray.get([w.pid.remote() for w in workers]), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a Ray cluster."""
    place = tmp_path_factory.mktemp("watch")
    (place / "hold.sh").write_text(f'source "{ROOT}/launch/common.sh"\n{HOLD}\n')
    environment = {"PATH": os.environ["PATH"], "RFT_STACK": stack_name(), "RUN_DIR": str(place / "run")}
    with subprocess.Popen(["bash", place / "hold.sh"], env=environment, stdout=subprocess.PIPE, text=True) as launcher:
        launcher.stdout.readline()  # run directory
        try:
            yield launcher.stdout.readline().strip()
        finally:
            launcher.terminate()


def of_driver(address: str) -> dict[str, str]:
    """The environment of a driver, as launch/ray.sh makes it."""
    return {"PATH": os.environ["PATH"], "RAY_ADDRESS": address, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def watched(address: str, scenario: str) -> subprocess.CompletedProcess:
    environment = of_driver(address) | {"RFT_RAY_LOGS": "/kept/ray_logs"}
    command = [sys.executable, str(ROOT / "tests/stack/ray_watch.py"), scenario]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)


def test_results_are_those_of_ray_get(address):
    """Although the trainer ends actors of its own meanwhile."""
    done = watched(address, "agents")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "result [0, 1]"


def test_a_task_that_raised_keeps_its_own_error(address):
    done = watched(address, "raise")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].endswith("the reward of batch 7 is not a number")
    assert "died" not in done.stderr


@pytest.mark.parametrize(("scenario", "who"), [("rank", "policy rank 1 (Rank)"), ("helper", "Rank")])
def test_a_killed_actor_ends_a_run_that_waits_for_others(address, scenario, who):
    done = watched(address, scenario)  # which gives up before the ranks do, who wait for ten minutes
    pid = done.stdout.split()[1]
    assert done.returncode == 1
    *_, error, found, wanted, repair = done.stderr.splitlines()
    assert error == f"error: {who} died, which ends the run"
    assert found.startswith(f"  found:  pid {pid} on ") and "worker process has died" in found
    assert wanted.startswith("  wanted:")
    assert f"/kept/ray_logs/worker-*-{pid}.*" in repair


def test_the_workers_of_an_engine_core_are_found_by_its_job(address, monkeypatch):
    import ray

    monkeypatch.setenv("RAY_ADDRESS", address)
    environment = of_driver(address)
    ray.init(logging_level="ERROR", log_to_driver=False)
    with subprocess.Popen([sys.executable, "-c", DRIVER], env=environment, stdout=subprocess.PIPE, text=True) as core:
        try:
            pids = [int(word) for word in core.stdout.readline().split()]
            jobs = jobs_of([core.pid])
            assert len(jobs) == 1 and jobs_of([os.getpid()]) != jobs
            assert worker_deaths(jobs) == []
            os.kill(pids[1], 9)
            deadline = time.monotonic() + 300
            while not (dead := worker_deaths(jobs)) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert [(d.who, d.pid, d.consequence) for d in dead] == [("RayWorkerWrapper", pids[1], False)]
        finally:
            core.kill()
            ray.shutdown()


def test_a_core_that_takes_long_to_end_is_named_all_the_same(address):
    """vLLM knows when the core's files close; on a busy machine the process has an exit code only seconds later."""
    import ray

    core = fork_context().Process(target=time.sleep, args=(600,))
    core.start()
    resources = types.SimpleNamespace(engine_manager=types.SimpleNamespace(processes=[core]))
    llm = types.SimpleNamespace(errored=True, engine_core=types.SimpleNamespace(resources=resources))
    try:
        ray.init(address, logging_level="ERROR", log_to_driver=False)
        threading.Timer(3, core.kill).start()
        (death,) = asyncio.run(deaths(llm, os.getpid()))
    finally:
        ray.shutdown()
        core.kill()
    assert (death.who, death.pid) == ("EngineCore", core.pid)
    assert "SIGKILL" in death.how
