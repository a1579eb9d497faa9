"""Micro-batches with a budget of tokens. Pure functions of lengths: equal lengths, equal micro-batches.

A batch is a list of indices into `lengths`; its size is the sum of their lengths.
"""

from bisect import bisect_left, insort


def plan(lengths: list[int], budget: int, ranks: int) -> list[list[list[int]]]:
    """The micro-batches of each rank: every index once, none above `budget`, equally many a rank.

    Ranks work in lockstep under ZeRO-3 and wait for each other after the last micro-batch otherwise. So micro-batches
    of about one size have the same place on every rank, the largest first, and a rank that had smaller ones so far
    gets the larger one of the next row.

    Args:
        lengths: tokens of each sequence, 1 or more.
        budget: tokens of a micro-batch.
        ranks: data-parallel ranks.

    Raises:
        ValueError: a sequence above the budget, or sequences that cannot be dealt out to the ranks. The number of
            sequences being a multiple of `ranks`, they always can: no more batches than sequences come of `best_fit`,
            and so of rounding their number up.
    """
    batches = best_fit(lengths, budget)
    batches = split_to(batches, lengths, -(-len(batches) // ranks) * ranks)
    batches.sort(key=lambda batch: (-_size(batch, lengths), batch))
    dealt, sizes = [[] for _ in range(ranks)], [0] * ranks
    for start in range(0, len(batches), ranks):
        order = sorted(range(ranks), key=lambda rank: sizes[rank])
        for rank, batch in zip(order, batches[start : start + ranks], strict=True):
            dealt[rank].append(batch)
            sizes[rank] += _size(batch, lengths)
    return dealt


def best_fit(lengths: list[int], budget: int) -> list[list[int]]:
    """Batches of at most `budget` tokens by best fit decreasing: at most 11/9 of the fewest possible, plus one.

    The longest sequence comes first, into the batch that it leaves the least room in; ties go to the lower index.

    Raises:
        ValueError: a sequence is longer than the budget, or shorter than one token.
    """
    if lengths and not 1 <= min(lengths) <= max(lengths) <= budget:
        raise ValueError(
            f"micro-batches by tokens: found sequences of {min(lengths)} to {max(lengths)} tokens\n"
            f"  wanted: 1 to {budget}\n"
            f"  repair: --micro_train_tokens and --micro_rollout_tokens of {max(lengths)} or more"
        )
    batches, rooms = [], []  # rooms: (tokens left, batch), sorted
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        place = bisect_left(rooms, (lengths[index], -1))
        if place == len(rooms):
            batches.append([])
            room, batch = budget, len(batches) - 1
        else:
            room, batch = rooms.pop(place)
        batches[batch].append(index)
        insort(rooms, (room - lengths[index], batch))
    return [sorted(batch) for batch in batches]


def split_to(batches: list[list[int]], lengths: list[int], count: int) -> list[list[int]]:
    """At least `count` batches: the largest one that can be is cut into two of about one size, until there are enough.

    Raises:
        ValueError: fewer sequences than `count`.
    """
    batches = list(batches)
    sequences = sum(map(len, batches))
    if sequences < count:
        raise ValueError(
            f"micro-batches by tokens: found {sequences} sequences\n  wanted: {count} or more, one a micro-batch\n"
            "  repair: a --rollout_batch_size and --train_batch_size that are multiples of the ranks"
        )
    while len(batches) < count:
        fullest = max((b for b in batches if len(b) > 1), key=lambda batch: (_size(batch, lengths), -batch[0]))
        batches.remove(fullest)
        halves, sizes = ([], []), [0, 0]
        for index in sorted(fullest, key=lambda index: (-lengths[index], index)):
            half = sizes.index(min(sizes))
            halves[half].append(index)
            sizes[half] += lengths[index]
        batches += [sorted(half) for half in halves]
    return batches


def most(sequences: int, longest: int, budget: int, ranks: int) -> int:
    """The most micro-batches a rank that `plan` makes of sequences of up to `longest` tokens.

    When a batch is opened every other one is too full for the sequence, so above `budget - longest` tokens, which are
    at least `budget // longest` sequences: all but the last batch have so many.
    """
    batches = -(-sequences // (budget // longest))
    return -(-batches // ranks)


def weights(plan: list[list[list[int]]], counts: list[int]) -> list[list[float]]:
    """The factor of each micro-batch's loss with which their sum over an optimizer step is one mean over the step.

    A micro-batch's loss is a mean over what it counts; its share of the step's is taken times the ranks, over which
    DeepSpeed averages. (It divides by no number of micro-batches: it knows of one.)

    Args:
        plan: of `plan`, by rank and micro-batch.
        counts: what each sequence counts: its tokens in the loss, or 1 where sequences count the same.
    """
    total = sum(counts) or 1  # a step of which nothing is in the loss
    return [[sum(counts[i] for i in batch) * len(plan) / total for batch in batches] for batches in plan]


def _size(batch: list[int], lengths: list[int]) -> int:
    return sum(lengths[index] for index in batch)
