"""Driver side of loud failure: wait for the training while watching every Ray actor of the run.

`ray.get` alone waits for as long as the task runs, and a task may wait for a dead actor forever (rank 0 in a
collective that rank 1 has left, a trainer whose idle engine is gone). Actors that train cannot answer a ping, so deaths
are read from Ray's actor table in the GCS, which needs neither the dashboard nor the actor. What Ray cannot see, vLLM's
EngineCore processes, each engine reports itself: `rft.hooks.engine_watch`.
"""

import os
import sys
import time
from typing import NamedTuple

import ray
from ray._private import state
from ray._private.worker import global_worker
from ray.core.generated import common_pb2
from ray.exceptions import RayActorError, RayError

from rft.hooks import places

PERIOD_SECONDS = 2.0  # one read of the actor table takes about 1.5 ms
SETTLE_SECONDS = 2.0  # an error often arrives before the news of the death that caused it
GRACE_SECONDS = 10.0  # for a process of an engine that reports an error: on a busy machine it may take seconds to end
ENGINES = "vLLM engine"

Reason = common_pb2.ActorDiedErrorContext.Reason
INTENDED = (Reason.Value("OUT_OF_SCOPE"), Reason.Value("REF_DELETED"))
OWNER_DIED, UNSPECIFIED = Reason.Value("OWNER_DIED"), Reason.Value("UNSPECIFIED")
# Of actors that the run's own code has made, an agent's tools: ray.kill, and the end of what such an actor owns.
ENDED_BY_OWNER = (*INTENDED, OWNER_DIED, Reason.Value("RAY_KILL"))
LOST = "is lost"  # of a node
ENDED_ITSELF = "INTENDED_USER_EXIT"  # in Ray's text: ray.actor.exit_actor, or the end of its main program


class Death(NamedTuple):
    """The end of one process of the run."""

    who: str  # "policy rank 1 (PolicyModelActor)"
    pid: int  # its process; 0 when it never had one
    node: str  # address of its node
    how: str  # what ended it, one line
    ended: float  # seconds since the epoch
    consequence: bool  # its owner died first
    log_pid: int  # the Ray worker whose log files hold its output
    what: str = "died"


def get(refs: list, groups: dict, whole_job: bool = True) -> list:
    """The results of `refs`, as `ray.get` returns them; the end of the run as soon as one of its actors dies.

    Args:
        refs: object references of tasks that run on the actors.
        groups: actors by name: a handle, a list of handles, OpenRLHF's `RayActorGroup`, or None. The handles under
            `ENGINES` must have a method `watch` that returns `engine_watch.deaths`.
        whole_job: watch the actors that `groups` does not name too, e.g. those that the trainer started.

    Raises:
        SystemExit: an actor or an engine process died; the message names which, how, and where its log is. The other
            actors have been killed.
        RayError: a task raised, and nothing died; the error is the task's own. The actors have been killed as well.
    """
    actors = members(groups)
    nodes = places.living_nodes()
    alarms = {engine.watch.remote(): name for name, engine in actors if name.startswith(ENGINES)}
    pending, error, deaths = list(refs), None, []
    while pending and not error and not deaths:
        ready, _ = ray.wait([*pending, *alarms], timeout=PERIOD_SECONDS)
        try:
            ray.get([ref for ref in pending if ref in ready])
        except RayError as raised:
            error = raised
        pending = [ref for ref in pending if ref not in ready]
        if pending or error:  # what dies after the last result costs nothing any more
            deaths = find_deaths(actors, alarms, whole_job, nodes)
            places.show(actors, nodes)
    if not error and not deaths:
        for alarm in alarms:
            ray.cancel(alarm)
        return ray.get(refs)
    settled = time.monotonic() + SETTLE_SECONDS
    latest = settled + (GRACE_SECONDS + SETTLE_SECONDS if "EngineDeadError" in str(error) else 0)
    if len(nodes) > 1 and "ActorUnavailable" in str(error):  # its machine may be silent: the GCS is about to know
        latest += places.SILENT_SECONDS
    while time.monotonic() < settled or (not deaths and time.monotonic() < latest):
        time.sleep(0.2)
        deaths = find_deaths(actors, alarms, whole_job, nodes)
    logs = os.environ.get("RFT_RAY_LOGS") or global_worker.node.get_logs_dir_path()
    stop(actors)
    if not deaths:
        raise error
    if error:
        print(error, file=sys.stderr, flush=True)
    raise SystemExit(last_words(deaths, logs))


def members(groups: dict) -> list[tuple[str, ray.actor.ActorHandle]]:
    """(name, handle) of every actor of the groups; names hold the rank, or the index of an engine."""
    found = []
    for name, group in groups.items():
        if isinstance(group, list):
            found += [(f"{name} {index}", handle) for index, handle in enumerate(group)]
        elif hasattr(group, "_actor_handlers"):
            found += [(f"{name} rank {rank}", handle) for rank, handle in enumerate(group._actor_handlers)]
        elif group is not None:
            found.append((name, group))
    return found


def find_deaths(actors: list, alarms: dict, whole_job: bool, nodes: dict[str, str]) -> list[Death]:
    """Everything that has died until now, the first cause first: what was on a node that is lost follows from that."""
    names = {handle._actor_id.hex(): name for name, handle in actors}
    found = actor_deaths(ray.get_runtime_context().get_job_id(), names, whole_job)
    for alarm in ray.wait(list(alarms), num_returns=len(alarms), timeout=0)[0] if alarms else []:
        try:
            reported = ray.get(alarm)
        except RayActorError:  # the engine's actor itself died: the actor table tells how
            continue
        found += [death._replace(who=f"{death.who} of {alarms[alarm]}") for death in reported]
    found += [Death(f"node {name}", 0, "", how, 0.0, False, 0, LOST) for name, how in places.lost(nodes)]
    return sorted(found, key=lambda death: (death.consequence, death.ended))


def actor_deaths(job_id: str, names: dict[str, str], unnamed: bool) -> list[Death]:
    """The actors of a Ray job that died without being given up, from the actor table of the GCS.

    What a run's own code starts it may also end: an unnamed actor that was killed by `ray.kill`, left by itself or went
    with its owner is no death. One that crashed, or was killed from outside, is.

    Args:
        job_id: the job whose actors are read, hexadecimal.
        names: name by hexadecimal actor id.
        unnamed: return the actors that `names` lacks too, under their class name.
    """
    found = []
    for actor_id, row in state.actors(job_id=ray.JobID.from_hex(job_id), actor_state_name="DEAD").items():
        how, reason = death_cause(row["DeathCause"])
        if reason in INTENDED or not (unnamed or actor_id in names):
            continue
        if actor_id not in names and (reason in ENDED_BY_OWNER or ENDED_ITSELF in how):
            continue
        kind, pid = row["ActorClassName"], row["Pid"]
        who = f"{names[actor_id]} ({kind})" if actor_id in names else kind
        node = row["Address"]["IPAddress"] or "no node yet"
        found.append(Death(who, pid, node, how, row["EndTime"] / 1000, reason == OWNER_DIED, pid))
    return found


def death_cause(cause: common_pb2.ActorDeathCause) -> tuple[str, int]:
    """What Ray knows of a death, in one line, and its reason (UNSPECIFIED where the actor could not be made)."""
    kind = cause.WhichOneof("context")
    if kind is None:
        return "Ray gives no cause", UNSPECIFIED
    context = getattr(cause, kind)
    if kind == "creation_task_failure_context":
        lines = context.formatted_exception_string.strip().splitlines()
        return f"it could not be made: {lines[-1] if lines else 'Ray holds no error'}", UNSPECIFIED
    text = " ".join(context.error_message.split()).removeprefix("The actor is dead because ")
    return text, context.reason if kind == "actor_died_error_context" else UNSPECIFIED


def stop(actors: list) -> None:
    """Kill the actors, the busy ones too, and leave Ray, so that nothing is printed behind the last words."""
    for _, handle in actors:
        ray.kill(handle)
    ray.shutdown()


def last_words(deaths: list[Death], logs: str) -> str:
    """The last lines of a run that a death ended: the first cause, what followed, where to read on."""
    first = deaths[0]
    lines = [f"error: {first.who} {first.what}, which ends the run", f"  found:  {told(first)}"]
    lines += [f"  also:   {d.who}, {told(d)}" for d in deaths[1:6]]
    if first.what == LOST:
        lines += ["  wanted: every node of the run there until the training is done"]
        lines += [
            "  repair: see what ended its part of the cluster (launch/node.sh there says), then go on with the run"
        ]
    else:
        lines += ["  wanted: every process of the run alive until the training is done"]
        lines += [f"  repair: read the end of {logs}/worker-*-{first.log_pid}.*, fix the cause, launch again"]
    return "\n".join(lines)


def told(death: Death) -> str:
    """Where a death happened and how."""
    return death.how if death.what == LOST else f"pid {death.pid} on {death.node}: {death.how}"
