"""Engine side of loud failure: report the death of what a vLLM engine runs in other processes.

vLLM's EngineCore is a child process of OpenRLHF's `LLMRayActor` (with `--full_determinism` too: AsyncLLM always starts
one), and its tensor-parallel workers are Ray actors of a job of their own, whose driver is the EngineCore. While
training continues the engine idles, and nobody would notice before the next rollout. Called by `rft.hooks.watch`.
"""

import asyncio
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from ray._private import state
from ray.util import get_node_ip_address

from rft.hooks.environment import LIMIT, stall_limit
from rft.hooks.watch import GRACE_SECONDS, Death, actor_deaths

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

PERIOD_SECONDS = 1.0
BEAT_SECONDS = 10.0  # between two questions to an EngineCore, each of which it answers between two of its steps
NAMED_SECONDS = 120.0  # without an answer, or half of the limit where that is less


async def deaths(llm: "AsyncLLM", actor_pid: int) -> list[Death]:
    """Wait until an engine has lost a process; what it lost, the first cause first.

    It costs the event loop a comparison a second; Ray's tables are read in a thread, as one read takes milliseconds.

    Args:
        llm: `vllm.v1.engine.async_llm.AsyncLLM`.
        actor_pid: the process that this runs in, whose log files hold the EngineCore's output.
    """
    cores = list(llm.engine_core.resources.engine_manager.processes)
    jobs = await asyncio.to_thread(jobs_of, [core.pid for core in cores])
    lost, beat = [], asyncio.ensure_future(silence(llm, cores, actor_pid))
    try:
        while not lost and not llm.errored and not (beat.done() and beat.result()):
            await asyncio.sleep(PERIOD_SECONDS)
            lost = await asyncio.to_thread(worker_deaths, jobs)
    finally:
        beat.cancel()
    if beat.done() and beat.result():
        return beat.result()
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


async def silence(llm: "AsyncLLM", cores: list, actor_pid: int) -> list[Death]:
    """Wait until an EngineCore has answered nothing for `STALL_LIMIT` seconds; [] where it has died instead.

    It answers while it samples, however long that takes, and while it sleeps. Seconds are counted by short waits, so
    that those in which this process was suspended itself are none.
    """
    limit, node = stall_limit(), get_node_ip_address()
    named = min(NAMED_SECONDS, limit / 2 or NAMED_SECONDS)
    while True:
        answer, waited, said = asyncio.ensure_future(llm.is_sleeping()), 0.0, False
        while not answer.done() and (waited < limit or not limit):
            await asyncio.wait([answer], timeout=PERIOD_SECONDS)
            waited += PERIOD_SECONDS
            if waited >= named and not said and not answer.done():
                said = True
                print(unanswered(cores, node, named, limit), file=sys.stderr, flush=True)
        if not answer.done():
            how = f"it has answered nothing for {waited:.0f} s"
            ended = (node, how, time.time(), False, actor_pid, "stands still")
            return [Death("EngineCore", core.pid, *ended) for core in cores]
        if answer.exception():
            return []
        await asyncio.sleep(min(BEAT_SECONDS, named))


def unanswered(cores: list, node: str, named: float, limit: float) -> str:
    """That an engine stands still, and what to do."""
    pids = " ".join(str(core.pid) for core in cores)
    left = f"the run {f'ends in {limit - named:.0f} s' if limit else 'waits for it'} ({LIMIT}={limit:.0f}; 0: never)"
    return (
        f"warning: an engine of process {os.getpid()} stands still\n"
        f"  found:  EngineCore, pid {pids} on {node}, has answered nothing for {named:.0f} s\n"
        "  wanted: an answer between two of its steps\n"
        f"  repair: kill -CONT {pids} there if it is stopped (state T); otherwise {left}"
    )


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
