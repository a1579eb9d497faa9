"""Run directories for the tests of the monitor, written by a real run's hooks, and ways to look at them."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from rft.hooks.metrics import log_evaluation, log_training_step
from rft.runs.monitor.page import page

ROOT = Path(__file__).resolve().parents[2]
STEP = {
    "reward_mean": 0.5, "correctness": 0.5, "has_boxed": 0.96, "group_mixed_share": 0.5, "grad_norm": 0.05,
    "grad_norm_max": 0.05, "ppo_kl": 0.0, "ppo_clip_ratio": 0.0, "advantage_std": 0.7, "entropy_mean": 0.01,
    "log_ratio_raw_max": 0.0, "ratio_max": 1.0, "log_ratio_abs_p99": 0.0, "mismatch_abs_mean": 2e-4,
    "sync_kept_share": 0.99, "sync_seconds": 0.05, "response_length": 33.0, "truncated": 0.0,
    "response_clip_ratio": 0.0, "high_reward_but_wrong": 0.0, "time_step_seconds": 8.0, "sync_checksum32": 2.9e9,
}  # fmt: skip
SPIKE = {
    "global_step": 3, "optimizer_step": 3, "rank": 0, "grad_norm": 73.2, "threshold": 50.0,
    "bundle": "spikes/step_3_rank_0", "micro_batches": [],
    "worst_tokens": [{"token": "é\x1b[2J", "context": "x", "log_prob": -9.0, "old_log_prob": -1.0}],
}  # fmt: skip


def write_run(run: Path, steps: int = 6, prompts: int = 48, metrics: Path | None = None, **last) -> Path:
    """A run of 12 steps (48 prompts, 4 a rollout), its lines written by the hooks that write a real run's."""
    (run / "data").mkdir(parents=True)
    (run / "data" / "train.jsonl").write_text('{"input": "1 + 1"}\n' * prompts)
    held_out = [{"input": "1", "datasource": "sums"}] * 10 + [{"input": "2", "datasource": "ood"}] * 8
    (run / "data" / "heldout.jsonl").write_text("\n".join(map(json.dumps, held_out)))
    options = {"prompt_data": run / "data" / "train.jsonl", "eval_dataset": run / "data" / "heldout.jsonl",
               "rollout_batch_size": 4, "eval_steps": 4, "eval_n_samples_per_prompt": 1}  # fmt: skip
    command = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    manifest = {"started": "2026-11-21T10:00:00+00:00", "command": ["python", "-m", "openrlhf.cli.train_ppo_ray"]}
    (run / "run.json").write_text(json.dumps({**manifest, "command": manifest["command"] + command}))
    (run / "phases.jsonl").write_text('{"phase": "set-up", "seconds": 0.444}\n')
    for step in range(1, steps + 1):
        log(metrics or run, step, reward_mean=step / steps, **(last if step == steps else {}))
        if step % 4 == 0:
            log(metrics or run, step, evaluation={"eval_sums_pass1": 0.1 * step, "eval_ood_greedy_pass@1": 0.5})
    return run


def log(metrics: Path, step: int, evaluation: dict | None = None, **values) -> None:
    """One line as training writes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METRICS_LOG_DIR", str(metrics))
        if evaluation is None:
            log_training_step(step, {**STEP, **values})
        else:
            log_evaluation(step, evaluation)


def text(state, width: int = 100, height: int | None = None, plain: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, height=height or 100, color_system=None)
    console.print(page(state, width, height, plain))
    return console.file.getvalue()


def monitor(*arguments, **environment) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "rft.runs.monitor", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
