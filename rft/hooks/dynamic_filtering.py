"""Dynamic filtering at the end of the data: the groups that passed are trained on, though they fill no rollout."""

from collections.abc import Iterator


def fill_up(accepted: dict, rejected: list[tuple], wanted: int) -> dict:
    """The groups of a rollout of `wanted` prompts for which the data had too few that pass the filter.

    Upstream drops all of them. A smaller rollout would not do: ranks, micro-batches and optimizer steps are dealt out
    by its size, and a rank without a batch stops the others in ZeRO-3's gathers. So it is filled up with groups that
    the filter has rejected, those of equal rewards first: their advantage is 0, and they add nothing to the gradient.

    Args:
        accepted: samples (`Experience`s of one each) of each group that passed, by any key.
        rejected: pairs of key and samples, in the order in which they were rejected. There are always enough: every
            rejected group had been replaced as long as there was data.
        wanted: prompts of a rollout.

    Returns:
        `accepted`, and as many rejected groups as it lacks, whose samples then have `filtered_out`; nothing where no
        group has passed.
    """
    if not accepted:
        return {}
    filled = dict(accepted)
    for key, samples in sorted(rejected, key=lambda pair: _spread(pair[1]))[: wanted - len(accepted)]:
        for sample in samples:
            sample.filtered_out = True
        filled[key] = samples
    return filled


def leave_open(iterator: Iterator) -> None:
    """Let the state of the data say "all taken", not "finished", after a rollout that has met the end of the data.

    A resume from a finished state would begin the data again within the episode (torchdata's `StatefulDataLoader`).
    """
    iterator._finished = False


def pass_rate(samples: list, n_samples_per_prompt: int, prompts: int) -> float:
    """Share of the prompts whose group has passed the filter, per cent."""
    passed = sum(not getattr(sample, "filtered_out", False) for sample in samples)
    return 100 * passed / n_samples_per_prompt / prompts


def _spread(samples: list) -> float:
    rewards = [float(sample.rewards[0]) for sample in samples]
    return max(rewards) - min(rewards)
