"""OpenRLHF's samples as micro-batches with a budget of tokens, `--micro_train_tokens` and `--micro_rollout_tokens`.

The driver makes all of them, before it deals them out: `RayActorGroup.async_run_method_batch` cuts a list into one
piece a rank, so that what comes back is in the order of what was sent.
"""

from argparse import Namespace
from typing import TYPE_CHECKING

from rft import packing

if TYPE_CHECKING:
    from openrlhf.trainer.ppo_utils.experience_maker import Experience
    from openrlhf.trainer.ppo_utils.replay_buffer import BufferItem, NaiveReplayBuffer


def for_scoring(samples: list["Experience"], args: Namespace, pad_token_id: int) -> list["Experience"]:
    """The samples of a rollout as micro-batches for the log-probabilities before an update, rank 0's first.

    Args:
        samples: of one sequence each, with `index`, which says afterwards where in the rollout a sequence came from.
        args: `micro_rollout_tokens`, and what the number of ranks follows from.
        pad_token_id: fills up shorter sequences.
    """
    from openrlhf.trainer.ppo_utils.experience_maker import Experience

    lengths = [tokens_of(sample) for sample in samples]
    return [
        Experience.concat_experiences([samples[index] for index in batch], pad_token_id)
        for of_rank in packing.plan(lengths, args.micro_rollout_tokens, ranks(args))
        for batch in of_rank
    ]


def for_training(experiences: list["Experience"], args: Namespace) -> list["Experience"]:
    """Scored micro-batches as those of training: rank 0's of every optimizer step in turn, then those of rank 1, …

    An optimizer step takes the next `--train_batch_size` samples in the order of the prompts, so that a prompt's
    samples stay together; sorted by length, as upstream has them, the first steps would see the extremes alone. What a
    rank gets of a step, and so the packing, changes no gradient: `weights` see to that.

    Args:
        experiences: from `for_scoring`, `index` still in place.
        args: `micro_train_tokens`, `train_batch_size`, `policy_loss_type`, and what the ranks follow from.

    Returns:
        Experiences with `loss_scale` (`weights`) and `ends_step` (the rank's last one of an optimizer step).

    Raises:
        ValueError: samples that make no number of whole steps.
    """
    from openrlhf.trainer.ppo_utils.replay_buffer import make_experience_batch, split_experience_batch

    order = [index for experience in experiences for index in experience.index]
    items = [item for experience in experiences for item in split_experience_batch(experience)]
    items = [item for _, item in sorted(zip(order, items, strict=True), key=lambda pair: pair[0])]
    size, count = args.train_batch_size, ranks(args)
    if len(items) % size:
        raise ValueError(
            f"micro-batches by tokens: found {len(items)} samples in a rollout\n  wanted: a multiple of {size}\n"
            "  repair: --train_batch_size that divides --rollout_batch_size x --n_samples_per_prompt"
        )
    dealt = [[] for _ in range(count)]
    for start in range(0, len(items), size):
        step = items[start : start + size]
        plan = packing.plan([tokens_of(item) for item in step], args.micro_train_tokens, count)
        scales = weights(plan, step, args.policy_loss_type)
        for rank, (batches, of_rank) in enumerate(zip(plan, scales, strict=True)):
            for number, (batch, scale) in enumerate(zip(batches, of_rank, strict=True), 1):
                made = make_experience_batch([step[index] for index in batch])
                made.loss_scale, made.ends_step = scale, number == len(batches)
                dealt[rank].append(made)
    return [experience for of_rank in dealt for experience in of_rank]


def weights(plan: list[list[list[int]]], items: list["BufferItem"], policy_loss_type: str) -> list[list[float]]:
    """`rft.packing.weights` of the micro-batches: by action tokens, or with gspo by responses.

    Args:
        plan: indices into `items`, by rank and micro-batch.
        items: of one sequence each, with `action_mask`.
    """
    return packing.weights(plan, [1 if policy_loss_type == "gspo" else int(item.action_mask.sum()) for item in items])


def keep(buffer: "NaiveReplayBuffer", experience: "Experience", size: int) -> None:
    """Remember the last `size` items of a rank's buffer as a micro-batch of its own; the buffer then yields these."""
    end = len(buffer.items)
    buffer.dynamic_indices.append(list(range(end - size, end)))
    buffer.dynamic_loss_scale.append(experience.loss_scale)
    buffer.dynamic_optimizer_step.append(int(experience.ends_step))


def ranks(args: Namespace) -> int:
    """Data-parallel ranks of the actor, to each of which the driver deals out."""
    actors = args.actor_num_nodes * args.actor_num_gpus_per_node
    return actors // (args.ring_attn_size * args.ds_tensor_parallel_size)


def tokens_of(sample: "Experience | BufferItem") -> int:
    """Tokens of a sample that attention sees; what a micro-batch costs without padding."""
    return int(sample.attention_mask.sum())
