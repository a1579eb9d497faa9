"""Micro-batches of a supervised training: the rows of each step, the packing on every rank, resume, held-out rows."""

import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rft.hooks import sft_batches, sft_run

BATCH = 4
LENGTHS = [9, 3, 14, 5, 5, 20, 2, 8, 11, 7]  # of row i, whose first token is i, and half of which is learned


def setting(lengths: list[int], rank: int, ranks: int, budget: int, drop_last: bool = True):
    """A dataloader of rows of these lengths, and a strategy as the trainer has them."""
    from openrlhf.utils.distributed_sampler import DistributedSampler

    def row(number: int) -> tuple[torch.Tensor, ...]:
        ids = torch.full((1, lengths[number]), number)
        mask = (torch.arange(lengths[number])[None] >= lengths[number] // 2).float()
        mask[0, -1] = 0
        return ids, torch.ones_like(ids), mask

    def collate(rows: list[tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
        width = max(ids.shape[1] for ids, *_ in rows)
        return tuple(
            torch.stack([torch.nn.functional.pad(each, (0, width - each.shape[1])) for each in column])
            for column in zip(*rows, strict=True)
        )

    dataset = [row(number) for number in range(len(lengths))]
    sampler = DistributedSampler(dataset, ranks, rank, shuffle=drop_last, seed=3, drop_last=drop_last)
    args = {"train_batch_size": BATCH, "micro_train_batch_size": 1 if budget else 2}
    args |= {"micro_train_tokens": budget, "use_dynamic_batch": budget > 0}
    strategy = types.SimpleNamespace(args=types.SimpleNamespace(**args), all_reduce=lambda value, op: value)
    strategy.accumulated_gradient, strategy.world_size = BATCH // ranks // args["micro_train_batch_size"], 1
    loader = torch.utils.data.DataLoader(
        dataset, args["micro_train_batch_size"], sampler=sampler, collate_fn=collate, drop_last=drop_last
    )
    return loader, strategy


def epoch(lengths: list[int], ranks: int, budget: int, number: int = 0, consumed: int = 0):
    """Of each rank its (rows, weight, ends the step, told to DeepSpeed) of an epoch."""
    found = []
    for rank in range(ranks):
        loader, strategy = setting(lengths, rank, ranks, budget)
        loader.sampler.set_epoch(number, consumed)
        told = []
        model = types.SimpleNamespace(model=types.SimpleNamespace(set_gradient_accumulation_boundary=told.append))
        found.append([
            (rows_of(ids, attention), weight, last, told[-1:])
            for ids, attention, _, weight, last in sft_batches.of_epoch(loader, strategy, model)
        ])  # fmt: skip
    return found


def rows_of(ids: torch.Tensor, attention: torch.Tensor) -> list[int]:
    return [int(row[0]) for row, kept in zip(ids, attention, strict=True) if kept.any()]


def by_step(of_rank: list) -> list[list[list[int]]]:
    """The micro-batches of each optimizer step."""
    steps, step = [], []
    for rows, _, last, _ in of_rank:
        step.append(rows)
        if last:
            steps, step = [*steps, step], []
    assert not step
    return steps


def flat(batches: list[list[int]]) -> list[int]:
    return sorted(row for batch in batches for row in batch)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(3, 30), min_size=BATCH, max_size=18),
    ranks=st.sampled_from([1, 2, 4]),
    room=st.integers(0, 60),
)
def test_an_epoch_by_tokens_has_the_steps_of_one_by_rows(lengths, ranks, room):
    budget = max(lengths) + room
    found = [by_step(of_rank) for of_rank in epoch(lengths, ranks, budget)]
    wanted = by_step(epoch(lengths, 1, 0)[0])  # on one rank: the order of the sampler
    assert {len(steps) for steps in found} == {len(lengths) // BATCH} == {len(wanted)}
    for number, step in enumerate(wanted):
        shares = [steps[number] for steps in found]
        assert flat([row for share in shares for row in share]) == flat(step)
        assert len({len(share) for share in shares}) == 1, "ranks wait for each other"
        assert all(sum(lengths[row] for row in batch) <= budget for share in shares for batch in share)


def test_weights_make_one_mean_over_the_learned_tokens_of_a_step():
    """Summed over a rank's micro-batches and averaged over the ranks, each token counts 1 / tokens of the step."""
    learned = {row: length - 1 - length // 2 for row, length in enumerate(LENGTHS)}
    for of_rank in epoch(LENGTHS, 2, 25):
        for rows, weight, last, told in of_rank:
            assert told == [last]
            step = next(s for s in by_step(epoch(LENGTHS, 1, 0)[0]) if rows[0] in flat(s))
            total = sum(learned[row] for row in flat(step))
            assert weight == pytest.approx(2 * sum(learned[row] for row in rows) / total)


def test_a_resumed_epoch_goes_on_with_the_next_step():
    for ranks in (1, 2):
        whole, rest = epoch(LENGTHS, ranks, 25, number=1), epoch(LENGTHS, ranks, 25, number=1, consumed=BATCH)
        assert whole == epoch(LENGTHS, ranks, 25, number=1) != epoch(LENGTHS, ranks, 25)
        for of_rank, left in zip(whole, rest, strict=True):
            assert by_step(left) == by_step(of_rank)[1:] != []


def test_a_step_counts_the_tokens_of_its_rank_without_padding(monkeypatch):
    begun = []
    monkeypatch.setattr(sft_run, "begin_step", lambda tokens, learned: begun.append((tokens, learned)))
    steps = by_step(epoch(LENGTHS, 1, 25)[0])
    wanted = [[(LENGTHS[row], LENGTHS[row] - 1 - LENGTHS[row] // 2) for row in flat(step)] for step in steps]
    assert begun == [tuple(map(sum, zip(*step, strict=True))) for step in wanted]


@pytest.mark.parametrize("budget", [0, 20, 100])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_held_out_rows_count_once_on_all_ranks(ranks, budget):
    """Ten rows on four ranks: the sampler gives two of them to a second rank, of which nothing is learned."""
    learned, passes = torch.zeros(len(LENGTHS)), set()
    for rank in range(ranks):
        batches = list(sft_batches.held_out(*setting(LENGTHS, rank, ranks, budget, drop_last=False)))
        passes.add(len(batches))
        for ids, attention, mask in batches:
            assert not budget or attention.sum() <= budget
            for row, of in zip(ids.squeeze(1), mask.squeeze(1), strict=True):
                learned[int(row[0])] += of.sum()
    assert learned.tolist() == [length - 1 - length // 2 for length in LENGTHS] and len(passes) == 1
