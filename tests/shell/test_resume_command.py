"""launch/resume.sh: one command finds how a run was started and starts it again, and refuses what differs.

A run that is really killed and resumed by it: tests/runs/test_resume.py.
"""

import json
import shutil

import pytest
from launching import ROOT, body, launch

RESUME = ROOT / "launch/resume.sh"
LAUNCHER = """
choose_seed 0
GRPO_ARGS=(--seed "$SEED" --ckpt_path "$CHECKPOINTS" --save_path "$ADAPTER" --lora_rank 8)
begin_run "$@"
if [[ $DRY_RUN == 1 ]]; then run "${COMMAND[@]}"; exit 0; fi
printf '%s\\n' "${COMMAND[@]}" >"$RUN_DIR/words"
printf 'SEED=%s RESUMES=%s PWD=%s\\n' "$SEED" "$RESUMES" "$PWD"
"""
KEY = "0123456789abcdef" * 2 + "01234567"


@pytest.fixture
def killed(tmp_path):
    """A run that was killed after its first checkpoint; its launcher, and a function that calls launch/resume.sh."""
    run, launcher = tmp_path / "run", body(tmp_path, LAUNCHER)
    options = ("--prompt_data", "a b", "--use_wandb", KEY)
    done = launch(launcher, tmp_path, *options, SEED="7", CKPT_ROOT="ckpt", WANDB_API_KEY=KEY, OTHER="x")
    assert done.returncode == 0, done.stderr
    command = (run / "words").read_text().splitlines()
    (run / "run.json").write_text(json.dumps({"command": command, "started": "2026-11-22T10:00:00+00:00"}))
    latest = run.resolve() / "checkpoints/_actor/latest"
    latest.parent.resolve().mkdir(parents=True)
    latest.write_text("global_step5")
    (run / "training_metrics.jsonl").write_text("{}\n")
    return run, launcher


def resume(run, *arguments, **environment):
    """As from another folder and shell."""
    place = run.parent / "elsewhere"
    place.mkdir(exist_ok=True)
    return launch(RESUME, place, str(run), *arguments, RUN_DIR="", CACHE_ROOT="", RFT_STACK="", **environment)


def test_what_was_given_is_kept_but_no_secret(killed):
    run, launcher = killed
    record = json.loads((run / "launch.json").read_text())
    assert record["launcher"] == str(launcher) and record["cwd"] == str(run.parent)
    assert record["options"] == ["--prompt_data", "a b", "--use_wandb", "true"]
    environment = record["environment"]
    assert environment["SEED"] == "7" and environment["CKPT_ROOT"] == "ckpt"
    assert environment.keys() == {"SEED", "CKPT_ROOT", "CACHE_ROOT", "RFT_STACK", "CLUSTER"}  # as `launch` gives them
    assert KEY not in (run / "launch.json").read_text()


def test_a_killed_run_goes_on_as_it_was_started(killed):
    run, _ = killed
    done = resume(run, "--num_episodes", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"resuming {run} from {run}/checkpoints/_actor/global_step5".replace(
        f"{run}/checkpoints", f"{run.parent}/ckpt/exp/run/checkpoints"
    )
    assert done.stdout.splitlines()[-1] == f"SEED=7 RESUMES=1 PWD={run.parent}"
    words = (run / "words").read_text().splitlines()
    former = json.loads((run / "run.json").read_text())["command"]
    assert words == [*former[:-1], "true", "--load_checkpoint", "--num_episodes", "2"]


def test_a_variable_that_says_the_same_is_no_difference(killed):
    run, _ = killed
    done = resume(run, SEED="7", CKPT_ROOT=str(run.parent / "ckpt"))
    assert done.returncode == 0 and "RESUMES=1" in done.stdout, done.stderr


def test_a_launchers_folder_means_its_newest_run(killed):
    run, _ = killed
    older = run.parent / "older"
    older.mkdir()
    (older / "run.json").write_text('{"started": "2026-11-21T10:00:00+00:00"}')
    done = resume(run.parent, DRY_RUN="yes")
    assert done.returncode == 0, done.stderr
    assert f"resuming {run} from" in done.stdout and "--load_checkpoint" in done.stdout.splitlines()[-1]


def test_a_finished_run_says_so(killed):
    run, _ = killed
    (run / "words").unlink()
    (run / "result.json").write_text("{}")
    done = resume(run)
    assert done.returncode == 0 and "is finished: nothing to resume" in done.stdout
    assert not (run / "words").exists()
    manifest = json.loads((run / "run.json").read_text()) | {"started": "2999-01-01T00:00:00+00:00"}
    (run / "run.json").write_text(json.dumps(manifest))  # started again since
    assert "RESUMES=1" in resume(run).stdout


def test_a_run_that_is_trained_is_measured_unless_it_is_to_train_on(killed):
    run, _ = killed
    (run / "trained").write_text("0\n")
    shutil.rmtree(run.parent / "ckpt")  # as of a run that kept no state
    done = resume(run)
    assert "is trained to its end: it is measured" in done.stdout and "RESUMES=1" in done.stdout, done.stderr
    assert "RESUMES=0" in resume(run, "--num_episodes", "2").stdout


def test_a_start_that_failed_before_its_manifest_begins_anew(killed):
    run, _ = killed
    (run / "run.json").unlink()
    (run / "training_metrics.jsonl").unlink()
    shutil.rmtree(run.parent / "ckpt")
    done = resume(run)
    assert done.returncode == 0, done.stderr
    assert "SEED=7 RESUMES=0" in done.stdout and (run / "start_1/words").is_file()


def other_launcher(run):
    launcher = run.parent / "exp.sh"
    launcher.write_text(launcher.read_text().replace("--lora_rank 8", "--lora_rank 16"))


def move(run):
    run.rename(run.parent / "moved")
    return run.parent / "moved"


REFUSED = {
    "no run": (lambda run: run.parent / "none", {}, ["found no directory"]),
    "no record": (lambda run: (run / "launch.json").unlink(), {}, ["no launch.json", "--load_checkpoint"]),
    "torn record": (lambda run: (run / "launch.json").write_text('{"'), {}, ["cannot be read", "launch.json"]),
    "moved": (move, {}, ["the run was moved", "repair: mv"]),
    "no launcher": (lambda run: (run.parent / "exp.sh").unlink(), {}, ["the launcher is gone"]),
    "another seed": (lambda run: None, {"SEED": "8"}, ["found:  SEED=8", "wanted: SEED=7", "repair: unset SEED"]),
    "another place": (lambda run: None, {"OUTPUT_ROOT": "/x"}, ["wanted: OUTPUT_ROOT unset"]),
    "another recipe": (other_launcher, {}, ["found:  --lora_rank 16", "wanted: --lora_rank 8", "ALLOW_CHANGED=1"]),
    "no yes or no": (lambda run: None, {"ALLOW_CHANGED": "perhaps"}, ["ALLOW_CHANGED=perhaps", "repair: "]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_differs_is_refused(killed, case):
    run, _ = killed
    change, environment, said = REFUSED[case]
    (run / "words").unlink()
    done = resume(change(run) or run if case != "torn record" else (change(run), run)[1], **environment)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert all(text in done.stderr for text in said), done.stderr
    assert not list(run.parent.glob("*/words"))


def test_a_difference_can_be_allowed(killed):
    run, _ = killed
    other_launcher(run)
    done = resume(run, ALLOW_CHANGED="yes", SEED="8")
    assert done.returncode == 0, done.stderr
    assert "SEED=8 RESUMES=1" in done.stdout and "\n16\n" in (run / "words").read_text()
