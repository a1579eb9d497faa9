"""Seeds, canary and checkpoint rotation, as far as they need no engine."""

import asyncio
import math
import random
import types

import numpy as np
import pytest
import torch

from rft.hooks import canary, checkpoints
from rft.hooks.cpu_generators import rewind
from rft.hooks.rollout_seeds import assign, plan, sample_seed


def test_seeds_follow_from_what_names_a_sample():
    base = (1, 2, "p", 0, 3)
    seeds = {sample_seed(*base)} | {
        sample_seed(*(value if place != changed else other for place, value in enumerate(base)))
        for changed, other in enumerate((9, 9, "q", 9, 9))
    }
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert sample_seed(*base) == sample_seed(*base)


def test_plan_tells_equal_prompts_apart_and_follows_the_switch():
    args = types.SimpleNamespace(rollout_seeds="request", seed=5, reward_timeout=60)
    places = plan(args, ["a", "b", "a"], {"global_step": 7}, first_index=4)
    assert [p["prompt_index"] for p in places] == [4, 5, 6]
    assert [p["occurrence"] for p in places] == [0, 0, 1]
    assert {p["step"] for p in places} == {7}
    args.rollout_seeds = "engine"
    assert plan(args, ["a"], {}, 0) == [{"prompt_index": 0, "reward_timeout": 60}]


def test_assign_leaves_the_shared_parameters_alone():
    shared = types.SimpleNamespace(seed=None, extra_args=None)
    (place,) = plan(
        types.SimpleNamespace(rollout_seeds="request", seed=5, reward_timeout=60), ["a"], {"global_step": 7}, 0
    )
    one, two = (assign(shared, "a", place, sample) for sample in (0, 1))
    assert shared.seed is None
    assert one.seed != two.seed
    assert two.extra_args == {"prompt_index": 0, "sample_index": 1, "reward_timeout": 60}
    assert assign(shared, "a", {"prompt_index": 0}, 0).seed is None


def test_rewound_generator_goes_on_as_if_nothing_had_been_discarded():
    steady, disturbed = (torch.Generator().manual_seed(3) for _ in range(2))
    wanted = [torch.empty(50).exponential_(generator=steady) for _ in range(3)]
    found = [torch.empty(50).exponential_(generator=disturbed) for _ in range(2)]
    torch.empty(50).exponential_(generator=disturbed)  # the draw that is discarded
    rewind(disturbed, 2, 50)
    found.append(torch.empty(50).exponential_(generator=disturbed))
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


TOKENS = 31


class Canary:
    """An engine's canary: what it computes with, and how much two measurements of that differ."""

    def __init__(self, monkeypatch, noise: float, two_values: bool = False):
        self.served, self.engine, self.measurements, self.weights = 0.0, types.SimpleNamespace(), 0, 7
        rng = random.Random(11)

        async def log_probs(engine) -> list[float]:
            self.measurements += 1
            drawn = [rng.choice((0.0, 1.0)) if two_values else rng.gauss(0, 1) for _ in range(TOKENS)]
            return [-5.0 - token / 7 + self.served + noise * value for token, value in enumerate(drawn)]

        async def after_others(engine, number: int) -> list[float]:
            return await log_probs(engine)

        async def digests(engine) -> list[dict[str, int]]:
            return [{"layer.weight": self.weights}]

        monkeypatch.setattr(canary.weight_digest, "digests", digests)
        monkeypatch.setattr(canary, "_log_probs", log_probs)
        monkeypatch.setattr(canary, "_after_others", after_others)
        assert self.shift() == 0.0  # measures the base

    def shift(self) -> float:
        return asyncio.run(canary.shift(self.engine))

    def sync(self, version: int, served: float, changed: float, outputs: float = 0.0, weights: int = 7) -> float:
        self.served, self.engine.adapter_version, self.weights = served, version, weights
        self.engine.adapter_receipts = [
            {"version": version, "changed_share": changed, "output_moved_share": outputs}
        ] * 2
        return self.shift()


def test_canary_of_a_deterministic_engine_is_exact(monkeypatch):
    one = Canary(monkeypatch, noise=0.0)
    before = one.measurements
    assert one.sync(1, served=0.0, changed=0.0) == 0.0
    assert one.sync(2, served=1e-7, changed=0.5, outputs=0.9) == pytest.approx(1e-7)
    assert one.sync(3, served=0.0, changed=0.001, outputs=2e-4) == 0.0  # rounding swallowed nearly all of it
    assert one.shift() == 0.0 and one.measurements == before + 3, "one measurement a version"
    with pytest.raises(RuntimeError, match=r"version 4 changed no weight.* 1 tensors .* such as layer.weight"):
        one.sync(4, served=1e-7, changed=0.0, weights=8)
    with pytest.raises(RuntimeError, match=r"version 5 .* for 1 versions: the new weights are not"):
        one.sync(5, served=0.0, changed=0.5, outputs=0.002)


@pytest.mark.parametrize("two_values", [False, True])
def test_a_learning_rate_of_zero_survives_an_engine_with_noise(monkeypatch, two_values):
    one = Canary(monkeypatch, 0.02, two_values)
    shifts = [one.sync(version, served=0.0, changed=0.0) for version in range(1, 1001)]
    assert max(shifts) > 0


def test_weights_that_move_without_a_receipt_are_found_in_noise(monkeypatch):
    one = Canary(monkeypatch, 0.02)
    with pytest.raises(RuntimeError, match="version 1 changed no weight"):
        one.sync(1, served=0.5, changed=0.0, weights=8)


def test_an_engine_that_begins_to_round_otherwise_ends_no_run(monkeypatch, capsys):
    """gpt-oss-120b's on an H200: with the first rollout its log-probabilities change for good, and no weight does."""
    one = Canary(monkeypatch, noise=0.0)
    assert one.sync(1, served=3.25, changed=0.0) == pytest.approx(3.25)
    assert "moved by 3.25 nats, and every weight of the engine is what it was" in capsys.readouterr().out
    assert one.sync(2, served=3.25, changed=0.0) == 0.0, "that much is noise now"
    assert not capsys.readouterr().out
    with pytest.raises(RuntimeError, match="version 3 changed no weight"):
        one.sync(3, served=9.0, changed=0.0, weights=8)


def test_a_sync_that_is_not_served_is_found_in_noise(monkeypatch):
    one = Canary(monkeypatch, 0.02)
    for version in range(1, canary.PATIENCE):
        one.sync(version, served=0.0, changed=0.5, outputs=1.0)
    with pytest.raises(RuntimeError, match=f"for {canary.PATIENCE} versions: the new weights are not served"):
        one.sync(canary.PATIENCE, served=0.0, changed=0.5, outputs=1.0)


def test_an_update_of_the_size_of_rounding_may_hide_in_noise(monkeypatch):
    one = Canary(monkeypatch, 0.02)
    for version in range(1, 100):
        one.sync(version, served=0.0, changed=0.5, outputs=0.3)


def test_small_updates_may_grow_out_of_the_noise(monkeypatch):
    """Each a fifth of the noise of one measurement: invisible at first, and no reason to end a run."""
    one = Canary(monkeypatch, 0.02)
    for version in range(1, 41):
        one.sync(version, served=0.004 * version, changed=0.5, outputs=1.0)
    assert one.engine.canary["hidden"] == 0


def test_the_bound_of_the_canary_is_the_documented_one():
    """Two values, the worst noise there is: the chance that two sets of equal weights come apart, over their share."""
    n, seen = canary.MEASUREMENTS, []
    for i in range(n + 1):
        for j in range(n + 1):
            sets = [[[float(k < count)] for k in range(n)] for count in (i, j)]
            if canary.apart(*sets) > canary.APART:
                seen.append((i, j))
    ways = [math.comb(n, i) for i in range(n + 1)]
    chances = [sum(ways[i] * ways[j] * p ** (i + j) * (1 - p) ** (2 * n - i - j) for i, j in seen) for p in SHARES]
    assert 7e-7 < max(chances) < 8e-7


SHARES = [k / 200 for k in range(1, 200)]


def folder(place, name: str, size: int = 10) -> None:
    (place / name).mkdir()
    (place / name / "weights").write_bytes(b"x" * size)


def names(place) -> list[str]:
    return sorted(path.name for path in place.iterdir())


@pytest.fixture
def rank_zero(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)


def test_oldest_checkpoints_go_by_step_not_by_name(tmp_path, rank_zero):
    for step in (2, 10, 9):
        folder(tmp_path, f"global_step{step}")
        folder(tmp_path, f"global_step{step}_hf")
    folder(tmp_path, "mine")
    checkpoints.remove_oldest(str(tmp_path), 2, 1e8, "global_step10")
    kept = ["global_step10", "global_step10_hf", "global_step2_hf", "global_step9", "global_step9_hf", "mine"]
    assert names(tmp_path) == kept
    checkpoints.remove_oldest(str(tmp_path), 1, 1e8, "global_step10_hf")
    assert names(tmp_path) == ["global_step10", "global_step10_hf", "global_step9", "mine"]
    checkpoints.remove_oldest(str(tmp_path), 5, 15 / 2**30, "global_step10")
    assert names(tmp_path) == ["global_step10", "global_step10_hf", "mine"]
    checkpoints.remove_oldest(str(tmp_path), 0, 0, "global_step10")
    assert "global_step10" in names(tmp_path)


@pytest.mark.parametrize("suffix", ["", "_hf"])
@pytest.mark.parametrize("left", [[20, 30], [3, 20, 30], [30]])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_folders_of_an_older_run_never_cost_the_checkpoint_just_written(tmp_path, rank_zero, suffix, left, number):
    for step in (*left, 4, 6):
        folder(tmp_path, f"global_step{step}{suffix}")
    checkpoints.remove_oldest(str(tmp_path), number, 1e8, f"global_step6{suffix}")
    by_worth = [6, 4, *(step for step in left if step < 4), *sorted((s for s in left if s > 6), reverse=True)]
    assert names(tmp_path) == sorted(f"global_step{step}{suffix}" for step in by_worth[:number])


def test_what_latest_names_is_never_removed(tmp_path, rank_zero):
    """Also where the newest was saved without becoming `latest`."""
    for step in (2, 4, 6, 8):
        folder(tmp_path, f"global_step{step}")
    (tmp_path / checkpoints.LATEST).write_text("global_step2")
    checkpoints.remove_oldest(str(tmp_path), 1, 1e8, "global_step6")
    assert names(tmp_path) == ["global_step2", "global_step6", checkpoints.LATEST]


def test_random_states_come_back():
    before = checkpoints.random_states()
    drawn = (random.random(), np.random.rand(), torch.rand(1))
    checkpoints.set_random_states(before)
    assert drawn == (random.random(), np.random.rand(), torch.rand(1))
