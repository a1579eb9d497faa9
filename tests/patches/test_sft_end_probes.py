"""What a supervised training leaves at its end and in W&B, in a run of one step at a learning rate of 0."""

import json
import re

import pytest
from ranks import run_module, world
from sft_checks import ROWS

from rft.record.names import EVAL_FILE, TRAINING_FILE
from rft.record.readers import read_jsonl


@pytest.fixture(scope="module")
def run(checkpoint, tmp_path_factory):
    """Its folder, what it printed, and its exit status."""
    place = tmp_path_factory.mktemp("sft")
    rows = place / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    options = ["--pretrain", checkpoint, "--dataset", rows, "--eval_dataset", rows, "--output_key", "output"]
    options += ["--apply_chat_template", "--train_batch_size", "4", "--micro_train_batch_size", "4"]
    options += ["--param_dtype", "bf16", "--lora_rank", "2", "--target_modules", "q_proj", "k_proj", "v_proj", "o_proj"]
    options += ["--learning_rate", "0", "--eval_steps", "100", "--max_epochs", "1", "--zero_stage", "2"]
    options += ["--save_path", place / "adapter", "--ckpt_path", place / "checkpoints", "--use_wandb", "true"]
    environment = world(1)[0] | {"RFT_RUN_DIR": str(place), "METRICS_LOG_DIR": str(place), "WANDB_DIR": str(place)}
    environment |= {"WANDB_MODE": "offline", "WANDB_API_KEY": "0" * 40}
    done = run_module("openrlhf.cli.train_sft", *options, environment=environment)
    return place, done.stdout, done.returncode


def test_a_supervised_learning_rate_of_zero_stays_zero(run):
    """The control run, which trains nothing."""
    place, said, status = run
    assert status == 0, said[-4000:]
    assert [step["actor_lr"] for step in read_jsonl(place / TRAINING_FILE)] == [0.0]


def test_a_supervised_run_is_measured_at_its_end(run):
    """Its one step is no multiple of --eval_steps."""
    assert [one["global_step"] for one in read_jsonl(run[0] / EVAL_FILE)] == [1]


def test_a_supervised_run_is_one_run_in_wandb(run):
    """Named by its directory, with every number of its step."""
    (file,) = (run[0] / "wandb").glob("offline-run-*/*.wandb")
    assert [each.read_text().strip() for each in run[0].glob("wandb_id")] == [file.stem.removeprefix("run-")]
    logged = set(re.findall(r"(?:train|eval)/\w+", file.read_bytes().decode("latin-1")))
    assert {"train/sft_loss", "train/grad_norm", "train/tokens", "eval/sft_eval_loss"} <= logged
    assert "train/loss_mean" not in logged, "one rank's part"
