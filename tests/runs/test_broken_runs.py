"""Deliberately broken runs of the real stack: each ends by its own rules, in seconds, or is named by the diagnosis.

One start serves two faults where they do not hide each other. Every test prints how long the fault went unnoticed.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from direct import Training, kill, log_of, start, wait_until

from rft.record.names import EVAL_FILE, TRAINING_FILE
from rft.record.readers import read_jsonl
from rft.runs.diagnose import diagnose
from rft.runs.memory import marked_processes

pytestmark = pytest.mark.stack
ZERO_REWARD = """
def reward_func(queries, prompts, labels):
    return {"rewards": [0.0], "extra_logs": {"correctness": 0.0}}
"""
# As if the engine had taken the adapter and gone on with its old weights: it answers, and does nothing.
DROPPED_SYNC = """
import importlib.util, sys

class Break:
    def find_spec(self, name, path=None, target=None):
        if name != "rft.hooks.lora_engine":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)

            async def apply_lora(engine, manifest, payload):
                receipt = {"version": manifest["version"], "layers": len(manifest["layers"]), "tp_rank": 0}
                receipt["serving"] = "exact"
                receipt |= {"checksum": "0" * 16, "changed_share": 0.5, "seconds": {}}
                return [receipt | {"kept_share": 1.0, "output_kept_share": 1.0, "output_moved_share": 1.0}]

            module.apply_lora = apply_lora

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Break())
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("METRICS_LOG_DIR", "SAMPLES_LOG_DIR", "RFT_RUN_DIR", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def finish(run_dir: Path, process: Training) -> int:
    """The exit status of a run, once nothing of it is left."""
    try:
        return process.wait(timeout=1200)
    finally:
        kill(run_dir, process)


def stopped_by(run_dir: Path, process: Training) -> dict:
    """Wait for a run that a rule must stop; what run.json says, and that all is in order behind it."""
    status = finish(run_dir, process)
    assert status == 10, log_of(run_dir)[-6000:]
    stopped = json.loads((run_dir / "run.json").read_text())["stopped"]
    assert stopped["exit_status"] == 10
    (stop,) = [d for d in read_jsonl(run_dir / "decisions.jsonl") if d["action"] == "stop"]
    assert (stop["rule"], stop["global_step"]) == (stopped["rule"], stopped["global_step"])
    steps = [record["global_step"] for record in read_jsonl(run_dir / TRAINING_FILE)]
    assert steps == list(range(1, stopped["global_step"] + 1)), "it ends after that step, and not later"
    assert (run_dir / "saved" / "adapter_model.safetensors").is_file()
    assert f"stopped: rule {stopped['rule']} at step {stopped['global_step']}" in log_of(run_dir)
    assert marked_processes(str(run_dir)) == []
    trained = sum(record["time_step_seconds"] for record in read_jsonl(run_dir / TRAINING_FILE))
    print(f"{stopped['rule']}: stopped at step {stopped['global_step']}, after {trained:.1f} s of training")
    return stopped


def diagnosed(run_dir: Path) -> dict[str, dict]:
    """The findings of the command that users call, by rule."""
    began = time.monotonic()
    command = [sys.executable, "-m", "rft.runs.diagnose", str(run_dir), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    found = {v["rule"]: v for v in json.loads(done.stdout)["verdicts"] if v["level"] != "ok"}
    levels = ", ".join(f"{rule} ({verdict['level']})" for rule, verdict in found.items())
    print(f"diagnose: {levels}, in {time.monotonic() - began:.1f} s")
    return found


def test_frozen_weights(checkpoint, tmp_path):
    """A learning rate that bf16 swallows, so that nothing but the sync's receipts shows it."""
    run_dir = tmp_path / "run"
    run = start(run_dir, checkpoint, "--actor_learning_rate", "1e-30", "--num_episodes", "2")
    assert stopped_by(run_dir, run)["rule"] == "frozen_weights"
    assert diagnosed(run_dir)["frozen_weights"]["numbers"] == {"sync_output_moved_share": [0.0, 0.0, 0.0]}


def test_zero_reward_and_truncation(checkpoint, tmp_path):
    """An untrained model hardly ever ends its answer within 24 tokens, and no answer is right."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "zero.py").write_text(ZERO_REWARD)
    run = start(run_dir, checkpoint, "--remote_rm_url", str(run_dir / "zero.py"), "--num_episodes", "3")
    stopped = stopped_by(run_dir, run)
    assert (stopped["rule"], stopped["global_step"]) == ("zero_reward", 5)
    found = diagnosed(run_dir)
    assert found["zero_reward"]["level"] == found["truncation"]["level"] == "bad"
    assert found["no_signal"]["level"] == "warn"  # 40 groups are too few to judge by
    assert "generate_max_len" in found["truncation"]["change"]
    watched = {d["rule"]: d["global_step"] for d in read_jsonl(run_dir / "decisions.jsonl") if d["action"] == "watch"}
    assert watched["truncation"] <= 3


def test_exploding_learning_rate_and_evaluations(checkpoint, tmp_path):
    """What the rate destroys is seen in the run's numbers; the base model's evaluation stands before all of them."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    problems = [{"input": [{"role": "user", "content": f"{n} + 1 ="}], "label": "1", "id": str(n)} for n in range(6)]
    (run_dir / "probe_ood.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    evaluation = ("--eval_dataset", str(run_dir / "probe_ood.jsonl"), "--eval_steps", "2", "--eval_temperature", "0")
    # The eager actor, whose bf16 softmax leaves the engine behind; the resident one follows it to any rate.
    rate = ("--actor_learning_rate", "3", "--num_episodes", "4", "--actor", "eager")
    run = start(run_dir, checkpoint, *evaluation, "--eval_n_samples_per_prompt", "1", *rate)
    assert stopped_by(run_dir, run)["rule"] in ("gradient", "mismatch", "not_finite", "no_signal", "zero_reward")
    evaluations = read_jsonl(run_dir / EVAL_FILE)
    assert [record["global_step"] for record in evaluations][:2] == [0, 2]
    name = "eval_probe_ood_greedy_pass@1"
    assert all(0 <= record[name] <= 1 and record["eval_probe_ood_problems"] == 6 for record in evaluations)
    best = json.loads((run_dir / "best.json").read_text())
    first_of_the_best = max(evaluations, key=lambda record: record[name])
    assert (best["metric"], best["value"], best["global_step"]) == (name, first_of_the_best[name], best["global_step"])
    assert best["global_step"] == first_of_the_best["global_step"]
    kept = [path.name for path in (run_dir / "checkpoints").glob("best_step*")]
    assert kept == ([f"best_step{best['global_step']}_hf"] if best["global_step"] else [])


def test_dropped_sync(checkpoint, tmp_path, monkeypatch):
    sabotage = tmp_path / "sabotage"
    sabotage.mkdir()
    (sabotage / "sitecustomize.py").write_text(DROPPED_SYNC)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(sabotage), os.environ.get("PYTHONPATH", "")]).strip(":"))
    run_dir = tmp_path / "run"
    stopped = stopped_by(run_dir, start(run_dir, checkpoint, "--num_episodes", "2"))
    assert stopped["rule"] == "dropped_sync" and stopped["global_step"] <= 3
    assert "no log-probability of the canary had" in stopped["reason"]
    assert "dropped_sync" in diagnosed(run_dir)


HANGS = """
import re

def reward_func(queries, prompts, labels):
    open({begun!r}, "a").close()
    re.match("(a+)+$", "a" * 64 + "b")  # one step of the interpreter, for ever
"""


def test_reward_function_that_hangs(checkpoint, tmp_path):
    """And holds the interpreter; where other threads run, tests/patches/test_agent_probes.py has its error."""
    run_dir, begun = tmp_path / "run", tmp_path / "begun"
    run_dir.mkdir()
    (run_dir / "hangs.py").write_text(HANGS.format(begun=str(begun)))
    run = start(run_dir, checkpoint, "--remote_rm_url", str(run_dir / "hangs.py"), "--reward_timeout", "5")
    try:
        wait_until(begun.exists, run, run_dir)
        began = time.monotonic()
        status = run.wait(timeout=600)
        seconds = time.monotonic() - began
        left = marked_processes(str(run_dir))
    finally:
        kill(run_dir, run)
    log = log_of(run_dir)
    print(f"hanging reward: {seconds:.1f} s from its begin to the exit, {len(log.splitlines())} lines")
    assert status == 1 and left == []
    died = ("vLLM engine 0 (LLMRayActor) died", "interpreter lock")
    for text in (*died, f"({run_dir}/hangs.py) has not returned after 5.0 s", "batch index ", "--reward_timeout"):
        assert text in log, log[-6000:]


@pytest.fixture
def small_disk(tmp_path):
    """A file system in memory with 1.1 GiB, of which a run may use what it writes."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1126m", "none", str(place)], capture_output=True, text=True
    )
    if not mounted or mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip() if mounted else 'no mount command'}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_full_disk(checkpoint, small_disk):
    """Something else fills the disk while the run trains."""
    run_dir = small_disk / "run"
    saving = ("--save_steps", "2", "--save_hf_ckpt", "--max_ckpt_num", "1")
    run = start(run_dir, checkpoint, "--num_episodes", "40", *saving)
    try:
        wait_until(lambda: len(read_jsonl(run_dir / TRAINING_FILE)) >= 2, run, run_dir)
    except BaseException:
        kill(run_dir, run)
        raise
    (small_disk / "something").write_bytes(b"0" * 2**28)
    filled = time.monotonic()
    stopped = stopped_by(run_dir, run)
    print(f"full disk: {time.monotonic() - filled:.1f} s from the filling to the exit")
    assert stopped["rule"] == "disk" and stopped["global_step"] < 120
    assert diagnose(run_dir)["stopped"] == stopped
