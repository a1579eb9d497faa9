"""launch/pipeline.sh: the order of a run's steps, how it ends, what a resumed run keeps."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from launching import ROOT, STUB, body, launch

PIPELINE = """
PYTHON=$STUB
MODEL_ARGS=(--pretrain m --prompt_max_len 1 --generate_max_len 1 --vllm_tensor_parallel_size 1)
GRPO_ARGS=(--prompt_data p --eval_dataset e --remote_rm_url r --save_path s --ckpt_path "$CHECKPOINTS")
begin_run "$@"; train_and_measure "$@"; echo done
"""


@pytest.fixture
def pipeline(tmp_path):
    """Runs the pipeline over stubs; returns the status, what was called in order, and what was printed."""

    def start(*arguments, training=0, preflight=0, after=0, summary=0, best="", **environment):
        (tmp_path / "calls").write_text("")
        (tmp_path / "stub").write_text(STUB)
        (tmp_path / "stub").chmod(0o755)
        calls = {"STUB": str(tmp_path / "stub"), "CALLS": str(tmp_path / "calls"), "RAY_ADDRESS": "auto"}
        statuses = {"TRAINING": str(training), "PREFLIGHT_STATUS": str(preflight)}
        statuses |= {"AFTER": str(after), "SUMMARY": str(summary), "BEST": best}
        done = launch(body(tmp_path, PIPELINE), tmp_path, *arguments, **calls, **statuses, **environment)
        called = [line.split()[0].removeprefix("rft.runs.") for line in (tmp_path / "calls").read_text().splitlines()]
        return done.returncode, called, done.stdout + done.stderr

    return start


BEFORE = ["inputs", "nodes", "preflight", "manifest", "--model", "openrlhf.cli.train_ppo_ray"]
AFTER = ["--model", "best", "summary", "report"]


def test_a_run_is_checked_measured_and_reported(pipeline, tmp_path):
    code, called, printed = pipeline()
    assert (code, called) == (0, BEFORE + AFTER), printed
    assert printed.endswith("done\n")
    phases = [json.loads(line)["phase"] for line in (tmp_path / "run/phases.jsonl").read_text().splitlines()]
    assert phases == ["preflight", "baseline evaluation", "grpo", "evaluation", "report"]


def test_the_adapter_that_was_best_is_measured_beside_the_last(pipeline, tmp_path):
    code, called, printed = pipeline(best="checkpoints/best_step12_hf")
    assert (code, called) == (0, [*BEFORE, "--model", "best", "--model", "summary", "report"]), printed
    (words,) = (line.split() for line in (tmp_path / "calls").read_text().splitlines() if " best=" in f" {line}")
    assert words[:2] == ["--model", "best=checkpoints/best_step12_hf"]
    assert words[-2:] == ["--output", f"{tmp_path}/run/evals/best.json"]


def test_a_run_that_a_rule_stopped_is_measured_and_keeps_its_status(pipeline):
    code, called, printed = pipeline(training=10)
    assert (code, called) == (10, BEFORE + AFTER), printed
    assert "stopped by a rule" in printed and "done" not in printed


@pytest.mark.parametrize("training", [0, 10])
def test_a_run_that_cannot_be_measured_says_so_and_is_reported(pipeline, training):
    """A run that a rule stopped keeps its status."""
    code, called, printed = pipeline(training=training, after=2, summary=3)
    assert (code, called) == (training or 2, BEFORE + AFTER), printed
    assert "error: the evaluation of the adapter failed with exit status 2" in printed
    assert "error: the summary failed with exit status 3" in printed
    assert "the report failed" not in printed


def words_of(called, tmp_path):
    """The words of the one call of a module."""
    (line,) = (line for line in (tmp_path / "calls").read_text().splitlines() if line.split()[0] == called)
    return line.split()


def test_preflight_and_manifest_know_every_set_that_is_evaluated(pipeline, tmp_path):
    code, _, printed = pipeline("--eval_dataset", "e,f", EVAL_DATASET="one.jsonl,two.jsonl")
    assert code == 0, printed
    words = words_of("rft.runs.preflight", tmp_path)
    assert words[3 : words.index("--")] == ["--also-evaluated=one.jsonl", "--also-evaluated=two.jsonl"]
    inputs = [w.removeprefix("--input=") for w in words_of("rft.runs.manifest", tmp_path) if w.startswith("--input=")]
    assert inputs == ["m", "p", "e", "f", "one.jsonl", "two.jsonl"]
    (tmp_path / "run").rename(tmp_path / "former")
    assert pipeline()[0] == 0
    words = words_of("rft.runs.preflight", tmp_path)
    assert words[3] == "--"


def saved(run):
    """A complete checkpoint, as far as a launcher asks."""
    (run / "checkpoints/_actor").mkdir(parents=True, exist_ok=True)
    (run / "checkpoints/_actor/latest").write_text("global_step1")


def test_what_a_resumed_run_was_started_with_is_kept(pipeline, tmp_path):
    run, first = tmp_path / "run", ["preflight", "baseline evaluation", "grpo"]
    for number in (0, 1, 2):
        assert pipeline(*["--load_checkpoint"] * min(number, 1), "--seed", str(number), training=3)[0] == 3
        (run / "run.json").write_text(f"{number}")  # the stub writes none
        saved(run)
        phases = [json.loads(line)["phase"] for line in (run / "phases.jsonl").read_text().splitlines()]
        assert phases == first * (number + 1)
    assert [(run / name).read_text() for name in ("run_1.json", "run_2.json", "run.json")] == ["0", "1", "2"]
    seeds = [(run / f"command{n}.sh").read_text().split()[-1] for n in ("_1", "_2", "")]
    assert seeds == ["0", "1", "2"]


def test_the_manifest_of_a_resumed_run_names_the_start_before(tmp_path):
    manifest = [sys.executable, "-m", "rft.runs.manifest", str(tmp_path), "--", "train"]
    found = []
    for _ in range(2):
        subprocess.run(manifest, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
        found.append(json.loads((tmp_path / "run.json").read_text()))
    assert "resumes" not in found[0]
    assert found[1]["resumes"] == found[0]["started"]


def test_the_tiny_launcher_resumes_with_its_model_and_data(tmp_path):
    """Over stubs, in a copy of launch/ whose set-up does nothing."""
    checkout, calls = tmp_path / "checkout", tmp_path / "calls"
    shutil.copytree(ROOT / "launch", checkout / "launch")
    (checkout / "launch/setup.sh").write_text("setup_env() { :; }\n")
    python = checkout / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(STUB)
    python.chmod(0o755)
    environment = {"CALLS": str(calls), "RAY_ADDRESS": "auto", "TRAINING": "3", "PREFLIGHT_STATUS": "0"}
    launcher = checkout / "launch/train_grpo_tiny.sh"
    made = []
    for arguments in ([], ["--load_checkpoint"]):
        calls.write_text("")
        done = launch(launcher, tmp_path, *arguments, **environment, AFTER="0", SUMMARY="0", BEST="")
        assert done.returncode == 3, done.stdout + done.stderr
        (tmp_path / "run/run.json").write_text("{}")
        saved(tmp_path / "run")
        made.append([word for word in ("--out", "rft.tiny.warmstart") if f"\n{word} " in f"\n{calls.read_text()}"])
    assert made == [["--out", "rft.tiny.warmstart"], []]


@pytest.mark.parametrize("status", [1, 3, 137])
def test_a_run_that_failed_ends_there(pipeline, status):
    code, called, printed = pipeline(training=status)
    assert (code, called) == (status, BEFORE), printed


def test_no_go_starts_nothing(pipeline, tmp_path):
    code, called, printed = pipeline(preflight=1)
    assert (code, called) == (1, ["inputs", "nodes", "preflight"]), printed
    assert not (tmp_path / "run/run.json").exists()


@pytest.mark.parametrize("no", ["0", "No"])
def test_preflight_can_be_skipped_and_says_so(pipeline, no):
    code, called, printed = pipeline(preflight=1, PREFLIGHT=no)
    assert code == 0 and "preflight" not in called
    assert "warning: PREFLIGHT=0" in printed


@pytest.mark.parametrize("status", [0, 1])
def test_preflight_alone_gives_its_status_and_leaves_the_directory_free(pipeline, status):
    code, called, printed = pipeline(preflight=status, PREFLIGHT="only")
    assert (code, called) == (status, ["inputs", "nodes", "preflight"]), printed
    assert ("nothing is trained" in printed) == (status == 0)
    code, called, printed = pipeline()
    assert (code, called) == (0, BEFORE + AFTER), printed


@pytest.mark.parametrize("training", [0, 10])
def test_a_run_that_was_not_measured_can_be_measured(pipeline, tmp_path, training):
    assert pipeline(training=training, after=2)[0] == (training or 2)
    (tmp_path / "run/run.json").write_text("{}")
    code, called, printed = pipeline("--load_checkpoint", training=1, MEASURE_ONLY="1")
    assert (code, called) == (training, AFTER), printed
    assert pipeline("--load_checkpoint", training=3)[0] == 3
    assert not (tmp_path / "run/trained").exists(), "it trains again"


def test_a_resumed_run_is_compared_with_its_start_first(pipeline, tmp_path):
    assert pipeline(training=3)[0] == 3
    (tmp_path / "run/run.json").write_text("{}")
    saved(tmp_path / "run")
    assert pipeline("--load_checkpoint", training=3)[1] == ["inputs", "manifest", *BEFORE[1:]]
    first = (tmp_path / "calls").read_text().splitlines()[1].split(" -- ")[0].split()
    assert first[-1] == "--unchanged"
    pipeline("--load_checkpoint", training=3, ALLOW_CHANGED="yes")
    first = (tmp_path / "calls").read_text().splitlines()[1].split(" -- ")[0].split()
    assert first[-2:] == ["--unchanged", "--warn"]


def test_a_metrics_file_of_another_run_is_not_continued(pipeline, tmp_path):
    (tmp_path / "training_metrics.jsonl").write_text("{}\n")
    code, called, printed = pipeline(METRICS_LOG_DIR=str(tmp_path))
    assert (code, called) == (1, [])
    assert "another run has logged there" in printed and not (tmp_path / "run").exists()
