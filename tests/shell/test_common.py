"""launch/common.sh: run directory, phases, exit codes, signals."""

import fcntl
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from launching import soon

from rft.runs.memory import marked_processes

ROOT = Path(__file__).resolve().parents[2]
BEGIN = 'GRPO_ARGS=(--ckpt_path "$CHECKPOINTS"); begin_run'


@pytest.fixture
def launch(tmp_path):
    """Start a launcher with the given body; returns the Popen. Its run directory is tmp_path/run."""
    started = []

    def start(body, **environment):
        script = tmp_path / "exp.sh"
        script.write_text(f'source "{ROOT}/launch/common.sh"\n{body}\n')
        process = subprocess.Popen(
            ["bash", script],
            env={"PATH": os.environ["PATH"], "RFT_STACK": "cpu", "RUN_DIR": str(tmp_path / "run")} | environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def finish(process):
    out, err = process.communicate(timeout=200)  # a hang: what a launcher must not wait for takes 300 s
    return process.returncode, out, err


def test_run_directory_and_phases(launch, tmp_path):
    code, out, err = finish(launch("begin_run; phase one; sleep 0.2; phase two; run true"))
    assert code == 0, err
    assert re.findall(r"^==> \[\d\d:\d\d\] (.*)$", out, re.MULTILINE) == ["one", "two"]
    phases = [json.loads(line) for line in (tmp_path / "run" / "phases.jsonl").read_text().splitlines()]
    assert [p["phase"] for p in phases] == ["one", "two"]
    assert phases[0]["seconds"] >= 0.2


def test_default_run_directory_is_named_after_the_launcher(launch):
    code, out, _ = finish(launch('echo "$RUN_DIR"', RUN_DIR=""))
    assert code == 0
    assert out.strip().startswith(f"{ROOT}/runs/exp/2") and out.strip().endswith("Z")


def test_a_taken_run_directory_is_refused(launch, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text("{}")
    code, out, err = finish(launch("begin_run; echo went on"))
    assert code == 1 and "went on" not in out
    assert "the run directory is taken" in err and "RUN_DIR=" in err
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["result.json"]


def test_an_empty_run_directory_is_taken_over(launch, tmp_path):
    (tmp_path / "run").mkdir()
    assert finish(launch("begin_run"))[0] == 0


@pytest.mark.parametrize("spelling", ["{}/run/", "{}/./new/../run", "run", "./run//"])
def test_the_run_directory_is_spelt_in_one_way(launch, tmp_path, spelling):
    body = 'begin_run; echo "$RFT_RUN_DIR $CHECKPOINTS"'
    code, out, err = finish(launch(body, RUN_DIR=spelling.format(tmp_path), CKPT_ROOT="ckpt/"))
    assert code == 0, err
    assert out.splitlines()[-1] == f"{tmp_path}/run {tmp_path}/ckpt/exp/run/checkpoints"


def killed_run(tmp_path):
    """What a run leaves that was killed after its first checkpoint."""
    latest = tmp_path / "run/checkpoints/_actor/latest"
    latest.parent.mkdir(parents=True)
    latest.write_text("global_step5")
    (tmp_path / "run/run.json").write_text("{}")
    (tmp_path / "run/launch.json").write_text("{}")
    (tmp_path / "run/phases.jsonl").write_text('{"phase": "grpo", "seconds": 1.000}\n')


def test_a_run_is_gone_on_with_in_its_directory(launch, tmp_path):
    killed_run(tmp_path)
    code, _, err = finish(launch(BEGIN))
    assert code == 1 and "the run directory is taken" in err and "bash launch/resume.sh" in err
    code, out, err = finish(launch(f"{BEGIN} --seed 1 --load_checkpoint --seed 2; phase one; echo $RESUMES"))
    assert code == 0 and out.splitlines()[-1] == "1", err
    phases = [json.loads(line)["phase"] for line in (tmp_path / "run/phases.jsonl").read_text().splitlines()]
    assert phases == ["grpo", "one"]


def test_a_folder_that_holds_no_run_is_not_gone_on_with(launch, tmp_path):
    killed_run(tmp_path)
    (tmp_path / "run/run.json").unlink()
    code, _, err = finish(launch(f"{BEGIN} --load_checkpoint"))
    assert code == 1 and "the run directory is taken" in err


@pytest.mark.parametrize("again", [BEGIN, f"{BEGIN} --load_checkpoint"])
def test_a_start_that_failed_before_training_is_taken_again(launch, tmp_path, again):
    """As after a refusal of preflight, or the training's first error: nothing was trained, and the logs are kept."""
    places = {"METRICS_LOG_DIR": str(tmp_path / "logs"), "CKPT_ROOT": str(tmp_path / "ckpt")}
    left = 'mkdir -p "$METRICS_LOG_DIR"; echo {} >"$RUN_DIR/run.json"; touch "$METRICS_LOG_DIR/eval_metrics.jsonl"'
    left += '; mkdir -p "$CHECKPOINTS"; echo {} >"$CHECKPOINTS/best.json"; ln -s ../logs "$RUN_DIR/mine"'
    assert finish(launch(f'{BEGIN} --seed 1; echo boom >"$RUN_DIR/train.log"; {left}; run false', **places))[0] == 1
    code, out, err = finish(launch(f'{again} --seed 2; phase one; echo "$RESUMES ${{COMMAND[*]}}"', **places))
    assert code == 0, err
    assert out.splitlines()[-1].startswith("0 ") and "--load_checkpoint" not in out.splitlines()[-1]
    aside = tmp_path / "run/start_1"
    assert (aside / "train.log").read_text() == "boom\n" and (aside / "eval_metrics.jsonl").is_file()
    assert (
        (aside / "checkpoints/best.json").is_file() and (aside / "mine").is_symlink() and (tmp_path / "logs").is_dir()
    )
    assert json.loads((aside / "launch.json").read_text())["options"] == ["--seed", "1"]
    assert json.loads((tmp_path / "run/launch.json").read_text())["options"] == ["--seed", "2"]
    assert not any((tmp_path / "run" / name).exists() for name in ("train.log", "run.json", "eval_metrics.jsonl"))
    assert (tmp_path / "run/eval_metrics.jsonl").readlink() == tmp_path / "logs/eval_metrics.jsonl"


def test_a_run_killed_before_its_first_checkpoint_begins_anew(launch, tmp_path):
    run = tmp_path / "run"
    trained = 'echo step >"$RUN_DIR/training_metrics.jsonl"; mkdir -p "$CHECKPOINTS/_actor/global_step5"; run false'
    assert finish(launch(f'{BEGIN}; echo "{{}}" >"$RUN_DIR/run.json"; {trained}'))[0] == 1
    code, _, err = finish(launch(BEGIN))
    assert code == 1 and "the run directory is taken" in err
    code, out, err = finish(launch(f"{BEGIN} --load_checkpoint; echo $RESUMES"))
    assert code == 0 and out.splitlines()[-1] == "0" and f"the earlier start is kept in {run}/start_1" in out, err
    assert (run / "start_1/training_metrics.jsonl").read_text() == "step\n"
    assert (run / "start_1/checkpoints/_actor/global_step5").is_dir() and not (run / "checkpoints").exists()
    (run / "run.json").write_text('{"command": ["--disable_ds_ckpt"]}')
    code, _, err = finish(launch(f"{BEGIN} --load_checkpoint"))
    assert code == 1 and "kept nothing to resume from" in err and "RESUMABLE=0" in err


def test_a_run_that_has_not_ended_is_not_gone_on_with(launch, tmp_path):
    owner = launch(f'{BEGIN}; echo {{}} >"$RUN_DIR/run.json"; echo ready; run sleep 300')
    while owner.stdout.readline() != "ready\n":
        assert owner.poll() is None
    # A child has the run's mark from its exec on.
    children = soon(lambda: marked_processes(str(tmp_path / "run")))
    code, _, err = finish(launch(f"{BEGIN} --load_checkpoint"))
    assert code == 1 and "the run has not ended" in err and str(children[0]) in err
    assert owner.poll() is None


def test_two_launches_never_share_a_run_directory(launch, tmp_path):
    killed_run(tmp_path)
    with (tmp_path / "run/phases.jsonl").open("a") as claimed:
        fcntl.flock(claimed, fcntl.LOCK_EX)
        code, _, err = finish(launch(f"{BEGIN} --load_checkpoint; echo went on"))
    assert code == 1 and "which another launch is using" in err


def test_a_failing_step_ends_the_launch_with_its_status(launch, tmp_path):
    code, out, _ = finish(launch("begin_run; phase one; run bash -c 'exit 7'; echo went on"))
    assert code == 7 and "went on" not in out
    assert json.loads((tmp_path / "run" / "phases.jsonl").read_text())["phase"] == "one"


def test_a_logged_step_keeps_its_output_and_status(launch, tmp_path):
    code, out, _ = finish(launch("""begin_run; run_logged "$RUN_DIR/x.log" bash -c 'echo out; echo err >&2; exit 3'"""))
    assert code == 3
    assert out.endswith("out\nerr\n")
    assert (tmp_path / "run" / "x.log").read_text() == "out\nerr\n"


def test_a_dry_run_prints_words_that_a_shell_reads_back(launch, tmp_path):
    words = ["a b", "$HOME", "it's", '"', "ü", ""]
    quoted = " ".join("'" + w.replace("'", "'\\''") + "'" for w in words)
    code, out, _ = finish(launch(f"begin_run; phase one; setup_env; start_ray 2; run printf {quoted}", DRY_RUN="1"))
    assert code == 0 and out.count("\n") == 1
    read_back = subprocess.run(["bash", "-c", f"printf '%s\\0' {out[len('printf') :]}"], capture_output=True, text=True)
    assert read_back.stdout.split("\0")[:-1] == words
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("step", ["run", 'run_logged "$RUN_DIR/x.log"'])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_launch_and_its_processes_at_once(launch, tmp_path, step, number, code):
    body = f"""begin_run; phase one; {step} bash -c 'echo $$ >"$0"; sleep 300 & wait' "{tmp_path}/pid" """
    process = launch(body)
    pid_file = tmp_path / "pid"
    while not (pid_file.exists() and pid_file.read_text().strip()):
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(number)
    assert finish(process)[0] == code
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()
    assert json.loads((tmp_path / "run" / "phases.jsonl").read_text())["phase"] == "one"


def test_a_stack_that_does_not_exist_is_refused(launch):
    code, _, err = finish(launch("echo went on", RFT_STACK="tpu"))
    assert code == 1 and "RFT_STACK=tpu" in err


def test_a_ray_address_where_nothing_listens_is_refused(launch):
    code, _, err = finish(launch("begin_run; start_ray", RAY_ADDRESS="127.0.0.1:9"))
    assert code == 1
    assert "no Ray at RAY_ADDRESS" in err and "127.0.0.1:9" in err


def test_stopping_a_process_tree_leaves_the_others_alone(launch):
    body = """
    sleep 300 & other=$!
    bash -c 'trap "" TERM; sleep 300 & sleep 300' & stubborn=$!
    bash -c 'sleep 300 & sleep 300' & leaves_orphans=$!
    tree=()
    until (( ${#tree[@]} == 6 )); do mapfile -t tree < <(descendants $stubborn; descendants $leaves_orphans); done
    stop_tree $leaves_orphans 300  # which `finish` does not wait for
    stop_tree $stubborn 1
    for pid in "${tree[@]}"; do if is_running $pid; then echo left $pid; fi; done
    is_running $other && echo other is there
    kill $other
    """
    code, out, err = finish(launch(body))
    assert (code, out) == (0, "other is there\n"), err
