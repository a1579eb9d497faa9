"""Gradient spikes: what is reported of a micro-batch, when a step is one, and how bundles are read and compared."""

import hashlib
import json
import math
import struct

import pytest
import torch

from rft.hooks import spikes
from rft.hooks.spike_report import append_record, finite, prompt_hashes, tails_of, turn_of, worst_tokens
from rft.runs.replay_spike import main
from rft.runs.spike_bundle import compare, load_bundle


class Letters:
    """A tokenizer whose token n is the n-th letter."""

    def decode(self, ids):
        return "".join(chr(ord("a") + i) for i in ids)


def micro_batch() -> dict[str, torch.Tensor]:
    """Two samples of 6 tokens: 2 of padding or prompt, prompt, and 3 or 2 actions (the second ends in padding)."""
    sequences = torch.tensor([[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 0]])
    action_mask = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 1, 1, 0]])
    old = torch.full((2, 5), -1.0)
    new = old.clone()
    new[0, 3] += 2.0
    new[1, 2] -= 3.0
    new[:, 0] += 100.0  # prompt positions count for nothing
    new[1, 4] -= 100.0
    return {
        "sequences": sequences,
        "attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]]),
        "action_mask": action_mask.bool(),
        "new_log_probs": new,
        "action_log_probs": old,
        "advantages": torch.tensor([[1.0] * 5, [-0.5] * 5]),
    }


def test_tails_are_over_action_tokens_only():
    tails = tails_of(micro_batch())
    assert (tails["log_ratio_max"], tails["log_ratio_min"], tails["tokens_in_batch"]) == (2.0, -3.0, 5)


def test_prompt_hash_is_of_the_attended_tokens_before_the_first_action():
    wanted = [hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest() for ids in ([1, 2], [6, 7, 8])]
    assert prompt_hashes(micro_batch()) == wanted


def test_positions_are_told_by_their_turn():
    mask = torch.tensor([0, 1, 1, 0, 0, 1, 0, 1, 1])
    assert [turn_of(mask, action) for action in mask.nonzero().flatten().tolist()] == [1, 1, 2, 3, 3]
    assert [turn_of(torch.tensor([1, 0, 1]), action) for action in (0, 2)] == [1, 2]


def test_worst_tokens_come_in_order_with_text_and_context():
    first, second, *others = worst_tokens([micro_batch()], Letters())
    assert (first["sample"], first["position"], first["token"], first["context"]) == (0, 4, "e", "bcd")
    assert (first["log_prob"], first["old_log_prob"], first["advantage"], first["score"]) == (1.0, -1.0, 1.0, 2.0)
    assert first["rollout_log_prob"] is None and first["turn"] == second["turn"] == 1
    assert (second["sample"], second["position"], second["token"], second["score"]) == (1, 3, "j", 1.5)
    assert len(others) == 3
    assert [token["score"] for token in others] == [0, 0, 0]


def test_tokens_without_a_log_ratio_are_told_apart_by_the_size_of_their_gradient():
    micro = micro_batch()
    micro["action_log_probs"] = micro["new_log_probs"] = torch.full((2, 5), -0.1)
    micro["new_log_probs"][0, 2] = -9.0  # an improbable token moves the logits most
    first, second, third, *_ = worst_tokens([micro], Letters())
    assert (first["sample"], first["position"]) == (0, 3)
    assert {second["sample"], third["sample"]} == {0}  # |advantage| 1 before 0.5


def test_nan_log_probability_is_the_worst_and_becomes_null_in_json():
    micro = micro_batch()
    micro["new_log_probs"][1, 3] = math.nan
    first = worst_tokens([micro], Letters())[0]
    assert (first["sample"], first["position"]) == (1, 4)
    assert json.loads(json.dumps(finite(first), allow_nan=False))["score"] is None


def test_finite_reaches_nested_values_and_leaves_the_rest():
    found = finite({"a": [1.5, math.inf, (math.nan, 2)], "b": {"c": True, "d": "NaN", "e": None, "f": 2**60}})
    assert found == {"a": [1.5, None, [None, 2]], "b": {"c": True, "d": "NaN", "e": None, "f": 2**60}}
    assert isinstance(found["b"]["f"], int)


def test_lines_are_appended_whole(tmp_path):
    append_record(tmp_path / "log.jsonl", {"a": math.nan})
    append_record(tmp_path / "log.jsonl", {"a": 1})
    assert (tmp_path / "log.jsonl").read_text() == '{"a": null}\n{"a": 1}\n'


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, None),
        ({"METRICS_LOG_DIR": "m"}, "m/spike_log.jsonl"),
        ({"METRICS_LOG_DIR": "m", "SPIKE_LOG_PATH": "s"}, "s"),
    ],
)
def test_place_of_the_log(monkeypatch, environment, wanted):
    for name in ("METRICS_LOG_DIR", "SPIKE_LOG_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = spikes.log_path()
    assert (found and str(found)) == wanted


def test_threshold_is_fifty_or_what_the_environment_says(monkeypatch):
    monkeypatch.delenv("SPIKE_GRAD_NORM", raising=False)
    assert spikes.threshold() == 50
    monkeypatch.setenv("SPIKE_GRAD_NORM", "2.5")
    assert spikes.threshold() == 2.5
    for text in ("many", "nan", ""):
        monkeypatch.setenv("SPIKE_GRAD_NORM", text)
        with pytest.raises(ValueError, match="SPIKE_GRAD_NORM is"):
            spikes.threshold()


def write(directory, micro: dict, **changes) -> dict:
    facts = {
        "optimizer_step": 3,
        "adapter_version": 2,
        "rank": int(directory.name[-1]),
        "world_size": 2,
        "grad_norm": 60.0,
        "adapter": "../step_3_rank_0/adapter",
        "args": {"pretrain": "nowhere"},
        "micro_batches": [{"loss": 0.5}],
        **changes,
    }
    spikes.write_bundle(directory, [micro], facts)
    return facts


def test_bundle_replaces_an_older_one_and_leaves_nothing_beside(tmp_path):
    directory = tmp_path / "spikes" / "step_3_rank_0"
    write(directory, micro_batch(), grad_norm=1.0)
    (directory / "of-an-older-run").touch()
    (tmp_path / "spikes" / ".step_3_rank_0.partial").mkdir()  # what a kill leaves
    write(directory, micro_batch(), grad_norm=math.inf)
    assert [path.name for path in directory.parent.iterdir()] == ["step_3_rank_0"]
    assert sorted(path.name for path in directory.iterdir()) == ["batch.safetensors", "spike.json"]
    assert json.loads((directory / "spike.json").read_text())["grad_norm"] is None


def test_a_bundle_that_cannot_be_written_leaves_none(tmp_path):
    def fail(_directory):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        spikes.write_bundle(tmp_path / "step_1_rank_0", [micro_batch()], {}, fail)
    assert not (tmp_path / "step_1_rank_0").exists()


def test_siblings_of_other_ranks_are_read_together(tmp_path):
    for rank in (0, 1):
        write(tmp_path / f"step_3_rank_{rank}", micro_batch())
    bundle = load_bundle(tmp_path / "step_3_rank_1")
    assert [facts["rank"] for facts in bundle.facts] == [0, 1]
    assert bundle.complete
    assert len(bundle.micros) == len(bundle.recorded) == 2
    assert torch.equal(bundle.micros[1]["sequences"], micro_batch()["sequences"])


def test_one_rank_of_two_is_compared_without_its_norm(tmp_path):
    write(tmp_path / "step_3_rank_0", micro_batch())
    bundle = load_bundle(tmp_path / "step_3_rank_0")
    assert not bundle.complete
    log_probs = [micro_batch()["new_log_probs"]]
    rows = compare(bundle, log_probs, [0.5], 1.0, 0.02)
    assert [row.name for row in rows] == ["0: mean log-prob", "0: loss"]
    assert all(row.agrees for row in rows)
    log_probs[0] = log_probs[0] + torch.tensor([0.1, -0.1]).repeat(3)[:5]  # whose mean hides a part of it
    assert [row.agrees for row in compare(bundle, log_probs, [0.5], 1.0, 0.02)] == [False, True]
    assert [row.agrees for row in compare(bundle, log_probs, [0.6], 1.0, 0.2)] == [True, True]
    assert [row.agrees for row in compare(bundle, log_probs, [math.nan], 1.0, 0.2)] == [True, False]


@pytest.mark.parametrize(
    ("recorded", "replayed", "agrees"),
    [(60.0, 61.0, True), (60.0, 62.0, False), (None, math.nan, True), (None, 60.0, False), (60.0, math.inf, False)],
)
def test_gradient_norms_agree_within_their_share_or_are_both_broken(tmp_path, recorded, replayed, agrees):
    write(tmp_path / "step_3_rank_0", micro_batch(), world_size=1, grad_norm=recorded)
    bundle = load_bundle(tmp_path / "step_3_rank_0")
    assert compare(bundle, [micro_batch()["new_log_probs"]], [0.5], replayed, 0.02)[-1].agrees is agrees


def damage_nothing(_directory):
    pass


@pytest.mark.parametrize(
    ("changes", "damage", "message"),
    [
        ({}, lambda d: (d / "spike.json").unlink(), "found no spike.json"),
        ({}, lambda d: (d / "spike.json").write_text("{"), "not JSON"),
        ({}, lambda d: (d / "spike.json").write_text("{}"), "found no adapter"),
        ({}, lambda d: (d / "batch.safetensors").write_bytes(b"torn"), "not a complete safetensors file"),
        ({}, damage_nothing, "copy the bundle of rank 0"),
        ({"adapter": None}, damage_nothing, "optimizer step 2 with --base"),
        ({"args": {"ring_attn_size": 2, "pretrain": "nowhere"}}, damage_nothing, "--ring_attn_size 2"),
    ],
)
def test_bad_input_gives_one_message_and_status_2(tmp_path, capsys, changes, damage, message):
    directory = tmp_path / "step_3_rank_0"
    write(directory, micro_batch(), **changes)
    damage(directory)
    assert main([str(directory)]) == 2
    assert message in capsys.readouterr().err


def test_missing_base_is_named(tmp_path, capsys):
    directory = tmp_path / "step_3_rank_0"
    write(directory, micro_batch())
    (directory / "adapter").mkdir()
    assert main([str(directory)]) == 2
    assert "nowhere: found no config.json" in capsys.readouterr().err


def test_bundles_of_two_steps_are_not_mixed(tmp_path, capsys):
    write(tmp_path / "step_3_rank_0", micro_batch())
    write(tmp_path / "step_3_rank_1", micro_batch(), grad_norm=61.0)
    assert main([str(tmp_path / "step_3_rank_0")]) == 2
    assert "found grad_norm 61.0, wanted 60.0" in capsys.readouterr().err
