"""Conversations in OpenRLHF's own trainer: what was not sampled changes no bit of a training, and spikes replay."""

import json
from pathlib import Path

import pytest
import torch
from ranks import run_module, run_ranks
from safetensors.torch import load_file

from rft.record.readers import read_jsonl

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def runs(checkpoint, tmp_path_factory) -> dict[str, Path]:
    """The same training on conversations twice, the second time with noise wherever nothing was sampled."""
    found = {kind: tmp_path_factory.mktemp(kind) for kind in ("turns", "turns-noise")}
    for kind, out in found.items():
        environment = {"SPIKE_GRAD_NORM": "0", "METRICS_LOG_DIR": str(out)}
        run_ranks("spike_train.py", 1, checkpoint, out, 3, kind, environment=environment)
    return found


def test_log_probabilities_between_turns_change_no_gradient_and_no_metric(runs):
    """Adapters before every update and at the end, bit for bit; so every gradient, which they follow from."""
    plain, noisy = (load_file(out / "adapters.safetensors") for out in runs.values())
    assert plain.keys() == noisy.keys()
    for name, tensor in plain.items():
        assert torch.equal(noisy[name].view(torch.int16), tensor.view(torch.int16)), name
    reports, of_noise = (json.loads((out / "status.json").read_text()) for out in runs.values())
    assert of_noise == reports
    *steps, first, last = reports
    assert all(step["policy_loss"] != 0 and step["kl"] > 0 for step in steps)
    assert {"mismatch_abs_mean", "advantage_std", "entropy_mean", "ppo_kl", "grad_norm"} <= first.keys()
    # 8 samples of 12, 14, 16 and 18 tokens behind the prompt, 5 of them an observation's.
    assert first["tokens_in_batch"] == last["tokens_in_batch"] == 8 * 15 - 8 * 5
    before, after = (
        {name.split(".", depth)[-1]: tensor for name, tensor in plain.items() if name.startswith(start)}
        for start, depth in (("0.0.", 2), ("end.", 1))
    )
    assert any(not torch.equal(before[name], after[name]) for name in before), "nothing was learned, nothing is shown"


def test_a_spike_of_conversations_names_sampled_tokens_and_replays(runs):
    plain, noisy = (read_jsonl(out / "spike_log.jsonl") for out in runs.values())
    assert [line["worst_tokens"] for line in plain] == [line["worst_tokens"] for line in noisy]
    assert [line["micro_batches"] for line in plain] == [line["micro_batches"] for line in noisy]
    micros = [micro for line in plain for micro in line["micro_batches"]]
    assert sum(micro["tokens_in_batch"] for micro in micros) == 2 * 80  # of both rollouts
    # A prompt ends before the first turn, so both trainings name the same prompts.
    assert all(len(micro["prompt_hashes"]) == 2 for micro in micros)
    assert {token["turn"] for line in plain for token in line["worst_tokens"]} == {1, 2, 3}
    done = run_module("rft.runs.replay_spike", runs["turns-noise"] / "spikes" / "step_4_rank_0")
    assert done.returncode == 0, done.stdout[-3000:]
    rows = [line for line in done.stdout.splitlines() if line.endswith((" agrees", " DIFFERS"))]
    assert len(rows) == 5 and all(float(line[24:].split()[2]) == 0 for line in rows)
