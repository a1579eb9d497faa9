"""What is left of a run though its parents are gone is ended with the launcher, however that ends; nothing else is."""

import json
import os
import signal
from pathlib import Path

import pytest
from launching import soon

from rft.runs.memory import marked_processes

ROOT = Path(__file__).resolve().parents[2]
# A child of a child that has ended belongs to init, as vLLM's EngineCore does after a SIGKILL of its Ray worker.
ORPHANS = """
begin_run
: >"$RUN_DIR/orphans"
sleeper='echo $$ >>"$RFT_RUN_DIR/orphans"; exec sleep 300'
(bash -c "$sleeper" & bash -c "$sleeper" &)
(trap "" TERM; bash -c "$sleeper" &)
until [[ $(wc -l <"$RUN_DIR/orphans") == 3 ]]; do sleep 0.1; done
"""


def orphans(run_dir: Path) -> set[int]:
    """The sleepers of a run that still run."""
    return set(marked_processes(str(run_dir))) & {int(pid) for pid in (run_dir / "orphans").read_text().split()}


def test_orphans_end_with_their_launcher_and_no_other_run_is_touched(start, tmp_path):
    mine, other = tmp_path / "run", tmp_path / "run2"
    neighbour = start(f"{ORPHANS}\necho ready\nrun sleep 300", other)
    while neighbour.stdout.readline() != "ready\n":
        assert neighbour.poll() is None
    before = soon(lambda: len(found := orphans(other)) == 3 and found)  # marked from the moment that exec is through

    done = start(f"{ORPHANS}\nrun false", mine)
    assert done.wait(timeout=300) == 1
    assert marked_processes(str(mine)) == []

    # A launch that is refused because a run lives there must leave it alone.
    refused = start("begin_run", other)
    assert refused.wait(timeout=300) == 1
    assert "the run has not ended" in refused.stdout.read()
    assert orphans(other) == before

    neighbour.terminate()
    assert neighbour.wait(timeout=300) == 143
    assert marked_processes(str(other)) == []


def test_a_signal_to_all_processes_of_the_launcher_ends_the_orphans_too(start, tmp_path):
    """`timeout` and a terminal that closes signal tee as well, to which the launcher then writes its last words."""
    body = 'stop_ray() { echo "Ray logs: somewhere"; }\nrun_logged "$RUN_DIR/log" bash -c "echo ready; sleep 300"'
    launcher = start(ORPHANS + body, tmp_path / "run")
    while launcher.stdout.readline() != "ready\n":
        assert launcher.poll() is None
    os.killpg(launcher.pid, signal.SIGTERM)
    assert launcher.wait(timeout=300) == 143
    assert marked_processes(str(tmp_path / "run")) == []


def test_a_launcher_that_is_killed_leaves_nothing_behind(start, tmp_path):
    """Its group is gone as well, as where `timeout --signal KILL` ends it."""
    mine, other = tmp_path / "run", tmp_path / "run2"
    neighbour = start(f"{ORPHANS}\necho ready\nrun sleep 300", other)
    body = """
    echo '{"rft": "0"}' >"$RUN_DIR/run.json"
    echo '{"global_step": 3}' >"$RUN_DIR/training_metrics.jsonl"
    export RFT_RAY_DIR=$RUN_DIR/../rft.folder
    mkdir -p "$RFT_RAY_DIR/session_latest/logs"
    echo started >"$RFT_RAY_DIR/start.log"
    echo raylet >"$RFT_RAY_DIR/session_latest/logs/raylet.out"
    echo ready
    run_logged "$RUN_DIR/train.log" bash -c 'echo trains; trap "" TERM; sleep 300; sleep 300'
    """
    launcher = start(ORPHANS + body, mine)
    for process, last in ((neighbour, "ready\n"), (launcher, "trains\n")):
        while process.stdout.readline() != last:
            assert process.poll() is None
    before = orphans(other)
    assert len(before) == len(orphans(mine)) == 3
    os.killpg(launcher.pid, signal.SIGKILL)
    soon(lambda: not marked_processes(str(mine)))

    assert orphans(other) == before and neighbour.poll() is None
    stopped = json.loads((mine / "run.json").read_text())["stopped"]
    assert (stopped["global_step"], stopped["rule"], stopped["exit_status"]) == (3, "launcher_killed", 137)
    assert f"the launcher, process {launcher.pid} on " in stopped["reason"]
    assert "error: the run was ended\n  found:  the launcher" in (mine / "train.log").read_text()
    assert not (tmp_path / "rft.folder").exists()
    assert {file.name for file in (mine / "ray_logs").iterdir()} == {"start.log", "raylet.out"}
    resumed = start("begin_run --load_checkpoint; echo went on", mine)
    assert resumed.wait(timeout=300) == 0 and resumed.stdout.read().endswith("went on\n")


def test_a_launcher_that_ends_by_itself_is_no_case_for_the_guard(start, tmp_path):
    launcher = start("""begin_run; echo {} >"$RUN_DIR/run.json"; run sleep 1; echo done""", tmp_path / "run")
    out = launcher.communicate(timeout=300)[0]  # until the last process has closed it
    assert (launcher.returncode, out.splitlines()[1:]) == (0, ["done"])
    assert (tmp_path / "run/run.json").read_text() == "{}\n" and not (tmp_path / "run/train.log").exists()


def test_a_stopped_process_is_named_and_ends_the_run(start, tmp_path):
    body = """begin_run; echo {} >"$RUN_DIR/run.json"; run bash -c 'echo $$; kill -STOP $$'; echo went on"""
    launcher = start(body, tmp_path / "run", STALL_LIMIT="2")
    out, _ = launcher.communicate(timeout=300)
    assert launcher.returncode == 1 and "went on" not in out
    pid = out.splitlines()[1]
    warning, error = out.index("warning: a process of the run is stopped"), out.index("error: the run was ended")
    assert warning < out.index(f"  repair: kill -CONT {pid}; otherwise the run ends in 1 s (STALL_LIMIT=2") < error
    assert f"pid {pid} on " in out[error:] and "with nobody to continue it" in out[error:]
    stopped = json.loads((tmp_path / "run/run.json").read_text())["stopped"]
    assert (stopped["rule"], stopped["exit_status"]) == ("stopped_process", 1) and f"pid {pid} on " in stopped["reason"]
    assert marked_processes(str(tmp_path / "run")) == []


def test_a_limit_that_is_no_number_is_refused(start, tmp_path):
    launcher = start("begin_run; echo went on", tmp_path / "run", STALL_LIMIT="soon")
    out, _ = launcher.communicate(timeout=300)
    assert launcher.returncode == 1 and "found:  STALL_LIMIT=soon" in out and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("number", "status", "named"),
    [(signal.SIGINT, 130, "SIGINT (Ctrl-C)"), (signal.SIGTERM, 143, "SIGTERM"), (signal.SIGHUP, 129, "SIGHUP")],
)
def test_a_signal_to_the_terminal_s_processes_is_an_interruption(start, tmp_path, number, status, named):
    """As Ctrl-C sends it: what the launcher runs is not hit, and says nothing about an end that is none of its own."""
    steps = """trap "echo hit" INT HUP; trap "echo asked; exit" TERM; echo trains; while true; do sleep 0.1; done"""
    body = f"""begin_run; echo {{}} >"$RUN_DIR/run.json"; run_logged "$RUN_DIR/train.log" bash -c '{steps}'"""
    launcher = start(body, tmp_path / "run")
    while launcher.stdout.readline() != "trains\n":
        assert launcher.poll() is None
    os.killpg(launcher.pid, number)
    out, _ = launcher.communicate(timeout=300)
    assert launcher.returncode == status
    assert out.split("\n") == ["", f"interrupted by {named}: ending what this launch has started", ""]
    assert "hit" not in (tmp_path / "run/train.log").read_text()
    stopped = json.loads((tmp_path / "run/run.json").read_text())["stopped"]
    assert (stopped["rule"], stopped["reason"], stopped["exit_status"]) == ("interrupted", named, status)


def test_a_command_is_ended_whose_number_a_signal_has_kept_from_being_noted(start, tmp_path):
    """The signal comes between a command's start and the line behind it; nothing marks the command as the run's."""
    pid = tmp_path / "run/pid"
    launcher = start(
        """begin_run
        in_between() {
            [[ $BASH_COMMAND == 'pid=$!' ]] || return 0
            trap - DEBUG
            until [[ -s $RUN_DIR/pid ]]; do sleep 0.02; done
            kill -TERM $$
        }
        set -T
        trap in_between DEBUG
        run env -i bash -c 'echo $$ >"$0"; exec sleep 300' "$RUN_DIR/pid"
        """,
        tmp_path / "run",
    )
    status = launcher.wait(timeout=300)
    left = Path(f"/proc/{pid.read_text().strip()}").exists()
    if left:
        os.kill(int(pid.read_text()), signal.SIGKILL)
    assert (status, left) == (143, False)
