"""Real runs whose processes are killed in the middle of training: each ends, says why and how soon; one is resumed."""

import json
import subprocess
import time
from pathlib import Path

import pytest
from direct import kill, log_of, start, wait_until
from float32_truth import assert_only_rounding_parts_evaluations
from launches import background, end, fell, stop_of, tail, wait_for
from tiny_dense import make_dense_checkpoint

from rft.record.names import TRAINING_FILE
from rft.record.readers import read_jsonl
from rft.runs.memory import marked_processes

pytestmark = pytest.mark.stack
ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ("bash", "launch/train_grpo_tiny.sh", "--max_samples", "128", "--save_steps", "1")  # 4 steps


@pytest.fixture(scope="module")
def dense_checkpoint(tmp_path_factory):
    return make_dense_checkpoint(tmp_path_factory.mktemp("tiny-dense"))


def test_a_killed_process_ends_the_launch_which_goes_on_from_its_checkpoint(tmp_path):
    """vLLM's EngineCore is no actor, and idles while the policy trains. It is killed, and then the launcher is."""
    run_dir, output = tmp_path / "run", tmp_path / "out"
    launcher = launch(run_dir, output)
    try:
        pids, last = fell(run_dir, launcher, output, "VLLM::EngineCore", after="checkpoints/_actor/latest")
    finally:
        end(launcher)
    assert "error: EngineCore of vLLM engine 0 died" in last
    assert f"pid {pids[0]} on " in last and "SIGKILL" in last
    assert last[last.index("error: ") :] in tail(output.read_text()), "the terminal shows what the log holds"
    logs = last.split("read the end of ")[1].split(",")[0]
    assert list(Path("/").glob(logs.lstrip("/"))), "the log that the message names must be there"
    assert not (run_dir / "adapter").exists()

    launcher = launch(run_dir, output, "--load_checkpoint")
    wait_for(run_dir, launcher, output, "VLLM::EngineCore")
    launcher.kill()
    launcher.wait()
    begin = time.monotonic()
    while marked_processes(str(run_dir)):
        assert time.monotonic() < begin + 300, output.read_text()[-4000:]
        time.sleep(0.1)
    print(f"launcher: {time.monotonic() - begin:.1f} s from the kill to the end of all")
    assert stop_of(run_dir)["rule"] == "launcher_killed" and list((run_dir / "ray_logs").glob("gcs_server*"))

    trained = [record["global_step"] for record in read_jsonl(run_dir / TRAINING_FILE)]
    for said in (f"resuming {run_dir} from {run_dir}/checkpoints/_actor/global_step", f"{run_dir} is finished"):
        launcher = background(["bash", "launch/resume.sh", str(run_dir)], output)
        try:
            assert launcher.wait(timeout=900) == 0, output.read_text()[-4000:]
        finally:
            end(launcher)
        assert output.read_text().startswith(said)
    steps = [record["global_step"] for record in read_jsonl(run_dir / TRAINING_FILE)]
    assert 1 <= len(trained) < 4 and steps == [1, 2, 3, 4]
    manifest, former = (json.loads((run_dir / name).read_text()) for name in ("run.json", "run_2.json"))
    assert manifest["resumes"] == former["started"] and manifest["inputs"] == former["inputs"]
    result = json.loads((run_dir / "result.json").read_text())
    assert (result["steps"], result["after"]["n"], result["loop"]["problems"]) == (4, 256, 256)
    assert "stopped" not in manifest
    assert_only_rounding_parts_evaluations(run_dir, step=4)
    assert (run_dir / "report.html").is_file() and marked_processes(str(run_dir)) == []


@pytest.mark.parametrize(
    ("sync", "victims", "named"),
    [
        (
            ["--vllm_sync_backend", "gloo"],
            ["ray::PolicyModelActor"],
            ["error: policy rank ", "(PolicyModelActor) died", "found:  pid {0} on "],
        ),
        (
            ["--vllm_sync_with_ray"],
            ["ray::PPOTrainer", "ray::LLMRayActor"],
            ["trainer (PPOTrainer)", "vLLM engine 0 (LLMRayActor)", "pid {0} on ", "pid {1} on "],
        ),
    ],
    ids=["broadcast, a rank that the other waits for", "Ray, trainer and engine, whose EngineCore is an orphan then"],
)
def test_full_training_syncs_until_its_actors_are_killed(sync, victims, named, dense_checkpoint, tmp_path):
    """All weights on two ranks, with a learning rate that moves every logit: each sync is served, each kill is loud."""
    run_dir = tmp_path / "run"
    rate = ("--lora_rank", "0", "--actor_learning_rate", "3e-3", "--lr_warmup_ratio", "0")
    process = start(run_dir, dense_checkpoint, *rate, *sync, "--actor_num_gpus_per_node", "2", "--num_episodes", "100")
    try:
        wait_until(lambda: len(read_jsonl(run_dir / TRAINING_FILE)) >= 3, process, run_dir)
        pids, last = fell(run_dir, process, run_dir.with_suffix(".log"), *victims)
    finally:
        kill(run_dir, process)
    assert [part for part in named if part.format(*pids) not in last] == [], last
    assert not (run_dir / "saved").exists()
    assert "error: " in log_of(run_dir)
    for record in read_jsonl(run_dir / TRAINING_FILE)[:3]:
        assert record["grad_norm"] > 0
        # The engine's log-probabilities follow the trainer's: without the sync they stay where they were.
        assert record["mismatch_abs_mean"] < 0.02
        assert "sync_layers" not in record  # what only the adapter's sync reports


def launch(run_dir: Path, output: Path, *options: str) -> subprocess.Popen:
    """The tiny launcher in the background."""
    return background([*LAUNCH, *options], output, RUN_DIR=str(run_dir), SEED="0")
