"""launch/ray.sh: what is left of a run though its parents are gone is ended with the launcher, and nothing else is."""

import os
import signal
import subprocess
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


@pytest.fixture
def start(tmp_path):
    """Start a launcher with the given body and run directory; returns the Popen."""
    started = []

    def popen(body: str, run_dir: Path) -> subprocess.Popen:
        script = tmp_path / f"exp{len(started)}.sh"
        script.write_text(f'source "{ROOT}/launch/common.sh"\n{body}\n')
        environment = {"PATH": os.environ["PATH"], "RFT_STACK": "cpu", "RUN_DIR": str(run_dir)}
        out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(["bash", script], env=environment, start_new_session=True, **out))
        return started[-1]

    yield popen
    for process in started:
        process.terminate()
        process.wait(timeout=300)


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

    # A launch that is refused because the folder is taken must leave its owner alone.
    refused = start("begin_run", other)
    assert refused.wait(timeout=300) == 1
    assert "the run directory is taken" in refused.stdout.read()
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
