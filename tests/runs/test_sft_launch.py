"""The launcher of a supervised run, as users call it: from a base that boxes nothing to one that GRPO goes on from."""

import json
import signal
import time

import pytest
from launches import ROOT, background, end
from ranks import run_module

from rft.record.names import TRAINING_FILE
from rft.record.readers import read_jsonl

pytestmark = pytest.mark.stack
LAUNCHER = ["bash", str(ROOT / "launch/train_sft_tiny.sh")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run to its end, and what it said."""
    place = tmp_path_factory.mktemp("sft") / "run"
    return place, launched(place)


def launched(place, *options: str, status: int = 0, **variables: str) -> str:
    said = place.with_suffix(".out")
    launcher = background([*LAUNCHER, *options], said, RUN_DIR=str(place), **variables)
    try:
        assert launcher.wait(timeout=900) == status, said.read_text()[-6000:]
    finally:
        end(launcher)
    return said.read_text()


def test_a_base_that_boxes_nothing_is_taught_to(run):
    place, said = run
    result = json.loads((place / "result.json").read_text())
    assert (result["before"]["verdict"], result["after"]["verdict"]) == ("SFT first", "go to GRPO")
    assert result["before"]["has_boxed"]["value"] < 0.5 < 0.95 < result["after"]["has_boxed"]["interval95"][0]
    # The rows keep the base's habit, which leaves the carry out: GRPO has something left to gain.
    assert 0.4 < result["after"]["correct"]["value"] < 0.9
    assert len(read_jsonl(place / TRAINING_FILE)) == result["steps"] == 32
    assert f"GRPO goes on from it: --init_adapter {place}/adapter" in said
    assert "SFT first → go to GRPO" in (place / "report.html").read_text()
    page = json.loads((place / "preflight.json").read_text())
    measured = {line["name"]: line["measured"] for line in page["checks"]}
    assert page["go"] and measured["rows"].startswith("512 conversations") and measured["steps"].startswith("2 epochs")
    manifest = json.loads((place / "run.json").read_text())
    assert "openrlhf.cli.train_sft" in manifest["command"] and len(manifest["inputs"]) == 4
    phases = [phase["phase"] for phase in read_jsonl(place / "phases.jsonl")]
    assert phases == ["set-up", "data", "warm start", "preflight", "format before", "sft", "format after", "report"]


def test_grpo_goes_on_from_the_run(run, tmp_path):
    """Its model, problems and adapter, shown before anything is started; a run that has not ended is refused."""
    launcher = ["bash", str(ROOT / "launch/train_grpo_tiny.sh")]
    said = tmp_path / "out"
    shown = background(launcher, said, RUN_DIR=str(tmp_path / "run"), SFT_RUN=str(run[0]), DRY_RUN="1")
    assert shown.wait(timeout=120) == 0, said.read_text()
    (training,) = [line for line in said.read_text().splitlines() if "openrlhf.cli.train_ppo_ray" in line]
    for word in ("model", "data/train.jsonl", "adapter"):
        assert f" {run[0]}/{word} " in f"{training} "
    assert "--model before=" + str(run[0] / "adapter") in said.read_text()
    refused = background(launcher, said, RUN_DIR=str(tmp_path / "run"), SFT_RUN=str(tmp_path))
    assert refused.wait(timeout=120) == 1 and "error: no run to go on from" in said.read_text()


def test_a_launch_that_is_asked_to_stop_resumes_in_the_same_order(run, tmp_path):
    place, said = tmp_path / "run", tmp_path / "out"
    launcher = background([*LAUNCHER, "--full_determinism"], said, RUN_DIR=str(place))
    try:
        wait_for_steps(place, launcher, said, 3)
        launcher.send_signal(signal.SIGUSR1)
        assert launcher.wait(timeout=300) == 11, said.read_text()[-6000:]
        assert f"to go on: bash launch/resume.sh {place}" in said.read_text()
        steps = len(read_jsonl(place / TRAINING_FILE))
        assert 3 <= steps < 32
        launcher = background(["bash", str(ROOT / "launch/resume.sh"), str(place)], said)
        assert launcher.wait(timeout=900) == 0, said.read_text()[-6000:]
    finally:
        end(launcher)
    assert f"resuming {place} from {place}/checkpoints/_actor/global_step{steps}" in said.read_text()
    assert [step["global_step"] for step in read_jsonl(place / TRAINING_FILE)] == list(range(1, 33))
    # The same rows in the same order as in the run that nobody stopped.
    for wanted, found in zip(read_jsonl(run[0] / TRAINING_FILE), read_jsonl(place / TRAINING_FILE), strict=True):
        assert found["learned_tokens"] == wanted["learned_tokens"]
    assert json.loads((place / "result.json").read_text())["after"]["verdict"] == "go to GRPO"


def wait_for_steps(place, launcher, said, least: int) -> None:
    deadline = time.monotonic() + 600
    while not (place / TRAINING_FILE).exists() or len(read_jsonl(place / TRAINING_FILE)) < least:
        assert launcher.poll() is None and time.monotonic() < deadline, said.read_text()[-6000:]
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("options", "line", "verdict", "said"),
    [
        (["--max_len", "90"], "rows", "no-go", "none within 90 tokens"),
        (["--max_len", "94"], "rows", "warn", "longer than --max_len 94 are left out"),
        (
            ["--max_len", "160", "--train_batch_size", "1024"],
            "steps",
            "no-go",
            "512 conversations fill no batch of 1024",
        ),
        (["--dataset", "/nowhere.jsonl"], "rows", "no-go", "found no file /nowhere.jsonl"),
    ],
)
def test_the_preflight_judges_the_rows(run, tmp_path, options, line, verdict, said):
    given = ["--pretrain", run[0] / "model", "--dataset", run[0] / "data/sft_train.jsonl", "--output_key", "output"]
    given += ["--apply_chat_template", "--train_batch_size", "32", "--lora_rank", "8", "--target_modules", "q_proj"]
    done = run_module(
        "rft.runs.preflight", "--json", "--run-dir", tmp_path, "--", "-m", "openrlhf.cli.train_sft", *given, *options
    )
    found = {one["name"]: one for one in json.loads(done.stdout[done.stdout.index("{") :])["checks"]}[line]
    assert (found["verdict"], said in found["measured"]) == (verdict, True), found
    assert done.returncode == int(verdict == "no-go")
