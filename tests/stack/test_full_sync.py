"""Full fine-tuning: each weight reaches the engine, by broadcast and through Ray. LoRA: what cannot sync is named."""

import pytest
from direct import kill, log_of, start, train
from tiny_dense import make_dense_checkpoint

from rft.hooks.metrics import TRAINING_FILE
from rft.runs.metrics import read_jsonl

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def dense_checkpoint(tmp_path_factory):
    return make_dense_checkpoint(tmp_path_factory.mktemp("tiny-dense"))


def full_training(tmp_path, checkpoint, *options: str) -> list[dict]:
    """Three steps on all weights, with a learning rate that moves every logit."""
    # Micro-batches of 64 equal sequences are what both sides compute with, so that only the weights can differ.
    changes = ("--lora_rank", "0", "--actor_learning_rate", "3e-3", "--lr_warmup_ratio", "0", *options)
    train(tmp_path / "run", checkpoint, *changes)
    return read_jsonl(tmp_path / "run" / TRAINING_FILE)


def assert_served(records: list[dict]) -> None:
    """The engine's log-probabilities follow the trainer's: without the sync they stay where they were."""
    assert len(records) == 3
    assert records[0]["grad_norm"] > 0
    for record in records:
        assert record["mismatch_abs_mean"] < 0.02, records
        assert "sync_layers" not in record  # what only the adapter's sync reports


def test_full_weights_reach_the_engine_through_ray(tmp_path, dense_checkpoint):
    assert_served(full_training(tmp_path, dense_checkpoint, "--vllm_sync_with_ray"))


def test_full_weights_reach_the_engine_by_broadcast(tmp_path, dense_checkpoint):
    assert_served(full_training(tmp_path, dense_checkpoint, "--vllm_sync_backend", "gloo"))


def test_layer_that_the_sync_cannot_carry_stops_training_by_name(tmp_path, checkpoint):
    run_dir = tmp_path / "run"
    process = start(run_dir, checkpoint, "--target_modules", "q_proj", "lm_head")
    try:
        assert process.wait(timeout=600) != 0
    finally:
        kill(run_dir, process)
    assert "lm_head.weight lands in a ParallelLMHead" in log_of(run_dir)
