"""Engine side of loud failure: report the death of what a vLLM engine runs in other processes.

vLLM's EngineCore is a child process of OpenRLHF's `LLMRayActor` (with `--full_determinism` too: AsyncLLM always starts
one), and its tensor-parallel workers are Ray actors of a job of their own, whose driver is the EngineCore. While
training continues the engine idles, and nobody would notice before the next rollout. Called by `rft.hooks.watch`.
"""

import asyncio
import signal
import time
from typing import TYPE_CHECKING

from ray._private import state
from ray.util import get_node_ip_address

from rft.hooks.watch import GRACE_SECONDS, Death, actor_deaths

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

PERIOD_SECONDS = 1.0


async def deaths(llm: "AsyncLLM", actor_pid: int) -> list[Death]:
    """Wait until an engine has lost a process; what it lost, the first cause first.

    It costs the event loop a comparison a second; Ray's tables are read in a thread, as one read takes milliseconds.

    Args:
        llm: `vllm.v1.engine.async_llm.AsyncLLM`.
        actor_pid: the process that this runs in, whose log files hold the EngineCore's output.
    """
    cores = list(llm.engine_core.resources.engine_manager.processes)
    jobs = await asyncio.to_thread(jobs_of, [core.pid for core in cores])
    lost = []
    while not lost and not llm.errored:
        await asyncio.sleep(PERIOD_SECONDS)
        lost = await asyncio.to_thread(worker_deaths, jobs)
    noticed = time.time()
    for _ in range(round(GRACE_SECONDS / PERIOD_SECONDS)):
        await asyncio.sleep(PERIOD_SECONDS)  # an EngineCore that raised says so first and ends then
        found = await asyncio.to_thread(worker_deaths, jobs)
        if found or any(core.exitcode is not None for core in cores):
            break
    node = get_node_ip_address()
    for core in cores:
        if core.exitcode is not None:
            found.append(Death("EngineCore", core.pid, node, ending(core.exitcode), noticed, False, actor_pid))
    if not found:
        found.append(Death("AsyncLLM", actor_pid, node, f"it reports {llm.dead_error!r}", noticed, False, actor_pid))
    return found


def jobs_of(pids: list[int]) -> list[str]:
    """Hexadecimal ids of the Ray jobs whose driver is one of these processes of this node."""
    here = get_node_ip_address()
    return [job["JobID"] for job in state.jobs() if job["DriverPid"] in pids and job["DriverIPAddress"] == here]


def worker_deaths(jobs: list[str]) -> list[Death]:
    """The dead actors of these Ray jobs."""
    return [death for job in jobs for death in actor_deaths(job, {}, unnamed=True)]


def ending(exitcode: int) -> str:
    """How a process ended, from multiprocessing's exit code: a negative number is the signal that killed it."""
    if exitcode >= 0:
        return f"it ended by itself with exit code {exitcode}"
    name = signal.Signals(-exitcode).name
    hint = ", as the kernel's out-of-memory killer does (see dmesg there)" if name == "SIGKILL" else ""
    return f"it was killed by {name}{hint}"
