"""The words for a death: what Ray's table holds, in lines that a user can act on."""

import signal
import types

import pytest
from ray.core.generated import common_pb2

from rft.hooks import environment, watch
from rft.hooks.engine_watch import ending
from rft.hooks.watch import LOST, Death, death_cause, last_words, members


def test_last_words_name_the_first_death_and_its_log():
    first = Death("policy rank 1 (PolicyModelActor)", 12, "10.0.0.7", "it was killed by SIGKILL", 5.0, False, 12)
    second = first._replace(who="PPOTrainer", pid=13)
    lines = last_words([first, second], "/run/ray_logs").splitlines()
    assert lines[0] == "error: policy rank 1 (PolicyModelActor) died, which ends the run"
    assert lines[1] == "  found:  pid 12 on 10.0.0.7: it was killed by SIGKILL"
    assert "PPOTrainer, pid 13" in lines[2]
    assert "/run/ray_logs/worker-*-12.*" in lines[-1]


def test_causes_that_ray_tells_fit_on_one_line():
    cause = common_pb2.ActorDeathCause()
    assert death_cause(cause) == ("Ray gives no cause", watch.UNSPECIFIED)
    cause.oom_context.error_message = "Task was killed due to\nthe node running low on memory."
    assert death_cause(cause)[0] == "Task was killed due to the node running low on memory."
    cause.creation_task_failure_context.formatted_exception_string = "Traceback\n  File …\nValueError: no such model\n"
    assert death_cause(cause)[0] == "it could not be made: ValueError: no such model"
    died = cause.actor_died_error_context
    died.error_message, died.reason = "The actor is dead because its owner has died.", watch.OWNER_DIED
    assert death_cause(cause) == ("its owner has died.", watch.OWNER_DIED)


def test_members_are_named_by_rank_and_index():
    group = types.SimpleNamespace(_actor_handlers=["a", "b"])
    found = members({"trainer": "t", "policy": group, watch.ENGINES: ["e"], "reference": None})
    assert found == [("trainer", "t"), ("policy rank 0", "a"), ("policy rank 1", "b"), ("vLLM engine 0", "e")]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "it ended by itself with exit code 0"),
        (1, "it ended by itself with exit code 1"),
        (-signal.SIGSEGV, "it was killed by SIGSEGV"),
        (
            -signal.SIGKILL,
            "it was killed by SIGKILL, as the kernel's out-of-memory killer does (see dmesg there)",
        ),
    ],
)
def test_exit_codes_in_words(code, words):
    assert ending(code) == words


WORKER_DIED = "The actor is dead because its worker process has died. Worker exit type: {} Worker exit detail: …"


@pytest.mark.parametrize(
    ("reason", "message", "named", "unnamed"),
    [
        ("OUT_OF_SCOPE", "The actor is dead because all references to the actor were removed.", False, False),
        ("RAY_KILL", "The actor is dead because it was killed by `ray.kill`.", True, False),
        ("WORKER_DIED", WORKER_DIED.format("INTENDED_USER_EXIT"), True, False),
        ("OWNER_DIED", "The actor is dead because its owner has died.", True, False),
        ("WORKER_DIED", WORKER_DIED.format("SYSTEM_ERROR"), True, True),
        ("WORKER_DIED", WORKER_DIED.format("USER_ERROR"), True, True),
        ("NODE_DIED", "The actor is dead because its node has died.", True, True),
    ],
)
def test_what_the_runs_own_code_ends_is_no_death(monkeypatch, reason, message, named, unnamed):
    """The table as Ray holds it: one actor of the run, and one that an agent has made, both gone the same way."""
    cause = common_pb2.ActorDeathCause()
    cause.actor_died_error_context.reason = watch.Reason.Value(reason)
    cause.actor_died_error_context.error_message = message
    row = {"DeathCause": cause, "ActorClassName": "Tool", "Pid": 7, "Address": {"IPAddress": "10.0.0.7"}, "EndTime": 9}
    monkeypatch.setattr(watch.state, "actors", lambda **_: {"aa": row, "bb": row})
    found = watch.actor_deaths("01000000", {"aa": "policy rank 0"}, unnamed=True)
    assert [death.who for death in found] == ["policy rank 0 (Tool)"] * named + ["Tool"] * unnamed


def test_a_lost_node_is_named_before_what_was_on_it():
    node = Death("node n2 (10.77.0.2)", 0, "", "health check failed", 0.0, False, 0, LOST)
    lines = last_words(
        [node, Death("policy rank 1", 12, "10.77.0.2", "its node died", 5.0, False, 12)], "/logs"
    ).splitlines()
    assert lines[0] == "error: node n2 (10.77.0.2) is lost, which ends the run"
    assert lines[1:3] == [
        "  found:  health check failed",
        "  also:   policy rank 1, pid 12 on 10.77.0.2: its node died",
    ]
    assert "launch/node.sh" in lines[-1]


def test_what_the_run_preloads_reaches_its_workers_alone(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "")
    assert "LD_PRELOAD" not in environment.of_this_run()
    monkeypatch.setenv("RUN_PRELOAD", "/venv/libnccl.so.2")
    assert environment.of_this_run()["LD_PRELOAD"] == "/venv/libnccl.so.2"
