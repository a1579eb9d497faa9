"""A supervised run through the real trainer: what it leaves, a stop and a resume to the same adapter, two ranks."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from compared import comparable, differing
from direct import QUICK
from metric_table import metric_sources
from safetensors.torch import load_file

from rft.hooks import save_and_stop
from rft.record.names import EVAL_FILE, TRAINING_FILE
from rft.record.readers import read_jsonl
from rft.tiny import unboxed
from rft.tiny.task import write_splits

pytestmark = pytest.mark.stack
OPTIONS = ["--param_dtype", "bf16", "--lora_rank", "8", "--target_modules", "q_proj", "k_proj", "v_proj", "o_proj"]
OPTIONS += ["--input_key", "input", "--output_key", "output", "--apply_chat_template", "--max_len", "160"]
OPTIONS += ["--max_epochs", "2", "--train_batch_size", "16", "--learning_rate", "3e-3", "--full_determinism"]
OPTIONS += ["--zero_stage", "2", "--save_steps", "2", "--eval_steps", "2", "--max_ckpt_num", "2"]
STEPS = 6  # of two epochs of 56 rows: 8 of them make no whole step
BUDGET = ["--micro_train_tokens", "240"]  # of rows of 60 to 75 tokens: three or four of the 16 of a step


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    place = tmp_path_factory.mktemp("rows")
    sizes = {"warm": 1, "train": 1, "heldout": 1, "sft_train": 56, "sft_dev": 13}
    write_splits(unboxed.make_splits(0, sizes), place)
    return place


def train(run, checkpoint, rows, *options: str, ranks: int = 1, status: int = 0) -> str:
    """A supervised training in `run`, to its end; what it printed."""
    run.mkdir(exist_ok=True)
    micro = str(8 // ranks)
    files = ["--dataset", rows / "sft_train.jsonl", "--eval_dataset", rows / "sft_dev.jsonl", "--pretrain", checkpoint]
    places = ["--save_path", run / "adapter", "--ckpt_path", run / "checkpoints", "--micro_train_batch_size", micro]
    command = [sys.executable, "-m", "rft.runs.ranks", ranks, "openrlhf.cli.train_sft", *files, *places, *OPTIONS]
    environment = {"RFT_RUN_DIR": str(run), "METRICS_LOG_DIR": str(run), "DS_ACCELERATOR": "cpu"}
    environment |= QUICK | {"TORCH_COMPILE_DISABLE": "1"}
    done = subprocess.run(
        [*map(str, command), *options],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == status, done.stdout[-6000:]
    return done.stdout


@pytest.fixture(scope="module")
def whole(checkpoint, rows, tmp_path_factory):
    run = tmp_path_factory.mktemp("sft") / "whole"
    return run, train(run, checkpoint, rows)


@pytest.fixture(scope="module")
def packed(checkpoint, rows, tmp_path_factory):
    run = tmp_path_factory.mktemp("sft") / "packed"
    train(run, checkpoint, rows, *BUDGET)
    return run


def test_a_supervised_run_leaves_its_numbers_and_its_adapter(whole):
    run, said = whole
    steps, held_out = read_jsonl(run / TRAINING_FILE), read_jsonl(run / EVAL_FILE)
    assert [step["global_step"] for step in steps] == list(range(1, STEPS + 1))
    assert [one["global_step"] for one in held_out] == [2, 4, 6]
    assert steps[-1]["sft_loss"] < steps[0]["sft_loss"] and held_out[-1]["sft_eval_loss"] < held_out[0]["sft_eval_loss"]
    assert all(0 < step["learned_tokens"] < step["tokens"] and step["grad_norm"] > 0 for step in steps)
    written, sources = {name for record in steps + held_out for name in record}, metric_sources()
    assert written - set(sources) == set()
    assert {name for name, source in sources.items() if "sft_run" in source} - written == set()
    assert "supervised rows: 13 conversations" in said and "left out, none cut" in said
    assert sorted(file.name for file in (run / "adapter").glob("*adapter*")) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert "of experts stay in MXFP4" in said, "the resident actor is what trains"
    kept = sorted(path.name for path in (run / "checkpoints/_actor").glob("global_step*"))
    assert kept == ["global_step4", "global_step6"]


def test_a_supervised_run_that_was_killed_and_then_stopped_resumes_to_the_same_adapter(
    whole, checkpoint, rows, tmp_path
):
    """As a kill in the sixth step leaves it; then asked to stop in the middle of the second epoch."""
    resume_twice(whole[0], checkpoint, rows, tmp_path / "killed")


def test_a_packed_run_resumes_to_the_same_adapter(packed, checkpoint, rows, tmp_path):
    resume_twice(packed, checkpoint, rows, tmp_path / "killed", *BUDGET)


def resume_twice(whole, checkpoint, rows, run, *options: str) -> None:
    shutil.copytree(whole, run, ignore=shutil.ignore_patterns("adapter", "global_step6"))
    (run / "checkpoints/_actor/latest").write_text("global_step4")
    (run / "run.json").write_text("{}")
    (run / save_and_stop.FILE).write_text("SIGUSR1\n")
    said = train(run, checkpoint, rows, *options, "--load_checkpoint", status=save_and_stop.STATUS)
    assert "stopped after step 5, with a checkpoint of it: SIGUSR1" in said
    assert json.loads((run / "run.json").read_text())["stopped"]["exit_status"] == save_and_stop.STATUS
    (run / save_and_stop.FILE).unlink()
    train(run, checkpoint, rows, *options, "--load_checkpoint")
    assert "stopped" not in json.loads((run / "run.json").read_text())
    for wanted, found in zip(comparable(whole), comparable(run), strict=True):
        assert differing(wanted, found) == {}, wanted["global_step"]
    first, second = (load_file(place / "adapter/adapter_model.safetensors") for place in (whole, run))
    assert all((first[name] == second[name]).all() for name in first)


def test_two_ranks_take_the_same_first_step(whole, checkpoint, rows, tmp_path):
    """Each has every other row of the batch."""
    train(tmp_path, checkpoint, rows, ranks=2)
    same_first_step(tmp_path, whole[0])


def test_packed_rows_take_the_same_first_step(whole, packed):
    same_first_step(packed, whole[0])
    assert len(read_jsonl(packed / TRAINING_FILE)) == STEPS
    # What is held out is the same; the adapters have moved on by two steps, each with its own rounding.
    found, wanted = (read_jsonl(run / EVAL_FILE) for run in (packed, whole[0]))
    assert found[0]["sft_eval_loss"] == pytest.approx(wanted[0]["sft_eval_loss"], rel=2**-4)
    assert found[-1]["sft_eval_loss"] < found[0]["sft_eval_loss"]


def test_packed_rows_take_the_same_first_step_on_two_ranks(whole, checkpoint, rows, tmp_path):
    train(tmp_path, checkpoint, rows, *BUDGET, "--max_epochs", "1", ranks=2)
    same_first_step(tmp_path, whole[0])


def same_first_step(run, whole) -> None:
    """Another order of sums, in bf16: a unit in the last place or two."""
    found, wanted = (read_jsonl(place / TRAINING_FILE)[0] for place in (run, whole))
    assert found["learned_tokens"] == wanted["learned_tokens"] and found["tokens"] == wanted["tokens"]
    assert found["sft_loss"] == pytest.approx(wanted["sft_loss"], rel=2**-7)
    assert found["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=2**-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max_samples", "8"], "error: the rows fill no batch"),
        (["--max_len", "20"], "error: found 56 conversations, none within 20 tokens"),
    ],
)
def test_what_a_supervised_run_cannot_be_ends_in_one_message(checkpoint, rows, tmp_path, options, said):
    shown = train(tmp_path / "run", checkpoint, rows, *options, status=1)
    assert said in shown and "Traceback" not in shown, shown[-3000:]
