"""Spike bundles of real DeepSpeed runs: what they hold, that recording changes nothing, and that they replay."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from ranks import run_module, run_ranks
from safetensors.torch import load_file

from rft.record.readers import read_jsonl

pytestmark = pytest.mark.stack
STEPS = 4  # spike_train.py: two rollouts of two updates


def train(checkpoint: Path, out: Path, ranks: int, stage: int, kind: str, record: bool) -> None:
    environment = {"SPIKE_GRAD_NORM": "0"} | ({"METRICS_LOG_DIR": str(out)} if record else {})
    run_ranks("spike_train.py", ranks, checkpoint, out, stage, kind, environment=environment)


@dataclass
class Runs:
    """One training with every step recorded as a spike, and the same one without a recorder."""

    ranks: int
    recorded: Path
    plain: Path

    def bundle(self, step: int, rank: int = 0) -> Path:
        return self.recorded / "spikes" / f"step_{step}_rank_{rank}"


@pytest.fixture(scope="module", params=[(1, 3), (2, 3), (1, 2)], ids=["zero3", "zero3-ranks2", "zero2"])
def runs(request, checkpoint, tmp_path_factory):
    path = tmp_path_factory.mktemp("spikes")
    ranks, stage = request.param
    found = Runs(ranks, path / "recorded", path / "plain")
    for out in (found.recorded, found.plain):
        train(checkpoint, out, ranks, stage, "static", record=out == found.recorded)
    return found


def replay(*args: object) -> subprocess.CompletedProcess:
    return run_module("rft.runs.replay_spike", *args)


def compared(done: subprocess.CompletedProcess) -> dict[str, list[str]]:
    """The printed comparison: quantity -> [recorded, replayed, difference, allowed, verdict]."""
    lines = [line for line in done.stdout.splitlines() if line.endswith((" agrees", " DIFFERS"))]
    return {line[:24].strip(): line[24:].replace("not finite", "inf").split() for line in lines}


def test_recording_leaves_training_the_same_bit_for_bit(runs):
    recorded, plain = (load_file(path / "adapters.safetensors") for path in (runs.recorded, runs.plain))
    assert recorded.keys() == plain.keys()
    for name, tensor in plain.items():
        assert torch.equal(recorded[name].view(torch.int16), tensor.view(torch.int16)), name
    assert (runs.recorded / "status.json").read_text() == (runs.plain / "status.json").read_text()
    assert not (runs.plain / "spike_log.jsonl").exists()
    assert (runs.recorded / "spike_log.jsonl").exists()


def test_bundle_holds_the_adapter_from_before_the_step_bit_for_bit(runs):
    snapshots = load_file(runs.recorded / "adapters.safetensors")  # micro-batch.optimizer-steps-so-far.name
    for step in range(1, STEPS + 1):
        assert runs.bundle(step).is_dir()
        saved = load_file(runs.bundle(step) / "adapter" / "adapter_model.safetensors")
        micro = 2 * (step - 1)  # the first of the step's two micro-batches
        wanted = {k.split(".", 2)[2]: v for k, v in snapshots.items() if k.startswith(f"{micro}.{step - 1}.")}
        assert saved.keys() == wanted.keys()
        assert len(saved) == 16
        for name, tensor in wanted.items():
            assert saved[name].dtype == torch.bfloat16
            assert torch.equal(saved[name].view(torch.int16), tensor.view(torch.int16)), name
    after = {k.split(".", 1)[1]: v for k, v in snapshots.items() if k.startswith("end.")}
    assert any(not torch.equal(saved[name], after[name]) for name in saved), (
        "the step changed nothing: nothing is proven"
    )


def test_every_rank_logs_whole_lines_that_name_its_bundle(runs):
    lines = read_jsonl(runs.recorded / "spike_log.jsonl")
    assert {(line["optimizer_step"], line["rank"]) for line in lines} == {
        (step, rank) for step in range(1, STEPS + 1) for rank in range(runs.ranks)
    }
    for line in lines:
        assert line["grad_norm"] > 0
        assert line["adapter_version"] == line["optimizer_step"] - 1
        assert line["global_step"] == (line["optimizer_step"] + 1) // 2
        assert len(line["worst_tokens"]) == 20
        assert sum(len(micro["prompt_hashes"]) for micro in line["micro_batches"]) == 4
        assert line["bundle"] == f"spikes/step_{line['optimizer_step']}_rank_{line['rank']}"
        assert sorted(os.listdir(runs.recorded / line["bundle"]))[-2:] == ["batch.safetensors", "spike.json"]
    assert not list(runs.recorded.rglob("*.partial"))
    assert "a-secret-key" not in "".join(path.read_text() for path in runs.recorded.rglob("*.json*"))
    scores = [token["score"] for token in lines[0]["worst_tokens"]]
    assert scores == sorted(scores, reverse=True)


def test_replay_computes_the_step_again(runs):
    done = replay(runs.bundle(STEPS, rank=runs.ranks - 1))
    assert done.returncode == 0, done.stdout[-3000:]
    rows = compared(done)
    assert len(rows) == 2 * 2 * runs.ranks + 1
    differences = {name: float(values[2]) for name, values in rows.items()}
    # The same operations in the same order: exact, but for the sum over ranks, which a replay makes on one.
    norm = differences.pop("gradient norm")
    assert set(differences.values()) == {0.0}
    assert norm <= (0 if runs.ranks == 1 else 0.01 * float(rows["gradient norm"][0]))


def test_micro_batches_by_tokens_of_two_ranks(checkpoint, tmp_path):
    """The weights are over both ranks, and a replay of both on one finds the losses and the norm again."""
    train(checkpoint, tmp_path, 2, 3, "dynamic", record=True)
    facts = [json.loads((tmp_path / f"spikes/step_2_rank_{rank}/spike.json").read_text()) for rank in (0, 1)]
    counts = [len(of_rank["micro_batches"]) for of_rank in facts]
    assert counts[0] == counts[1] > 1
    scales = [micro["dynamic_loss_scale"] for of_rank in facts for micro in of_rank["micro_batches"]]
    assert sum(scales) == pytest.approx(2) and max(scales) > min(scales)
    done = replay(tmp_path / "spikes/step_2_rank_1")
    assert done.returncode == 0, done.stdout[-3000:]
    assert len(compared(done)) == 2 * sum(counts) + 1


def test_micro_batches_by_tokens_and_a_gradient_that_is_not_finite(checkpoint, tmp_path):
    train(checkpoint, tmp_path, 1, 3, "dynamic", record=True)
    norms = {line["optimizer_step"]: line["grad_norm"] for line in read_jsonl(tmp_path / "spike_log.jsonl")}
    assert list(norms) == list(range(1, STEPS + 1))
    assert norms.pop(STEPS) is None  # DeepSpeed itself says 1.0
    assert all(norm > 0 for norm in norms.values())
    # A rollout's 8 samples of 21 to 29 tokens, 4 an update: three fit into 96.
    facts = json.loads((tmp_path / "spikes/step_2_rank_0/spike.json").read_text())
    assert len(facts["micro_batches"]) > 1
    assert sum(micro["dynamic_loss_scale"] for micro in facts["micro_batches"]) == pytest.approx(1)
    for step in (2, STEPS):
        done = replay(tmp_path / f"spikes/step_{step}_rank_0")
        assert done.returncode == 0, done.stdout[-3000:]
        values = compared(done)["gradient norm"]
        assert values[:2] == ["inf", "inf"] if step == STEPS else float(values[2]) == 0

    adapter = tmp_path / "spikes/step_2_rank_0/adapter"
    adapter.rename(tmp_path / "right")
    adapter.symlink_to(tmp_path / "spikes/step_1_rank_0/adapter")
    done = replay(adapter.parent, "--tolerance", "0.001")
    assert done.returncode == 1, done.stdout[-3000:]
    assert "DIFFERS" in done.stdout
