"""The micro-batches of a supervised training: a number of rows each, or with `--micro_train_tokens` a budget of tokens.

Every rank knows the order of all rows, so each plans the whole optimizer step by itself and takes its own part: equal
seeds, equal micro-batches, after a resume too, and nothing to send.
"""

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from deepspeed.accelerator import get_accelerator

from rft import packing
from rft.hooks import sft_run
from rft.hooks.sft_dataset import weighed

if TYPE_CHECKING:
    from openrlhf.models import Actor
    from openrlhf.utils.deepspeed import DeepspeedStrategy
    from openrlhf.utils.distributed_sampler import DistributedSampler
    from torch.utils.data import DataLoader

    Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # token ids, attention mask, loss mask


def of_epoch(
    dataloader: "DataLoader", strategy: "DeepspeedStrategy", model: "Actor"
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, bool]]:
    """The micro-batches of an epoch on this rank's device, of whole optimizer steps.

    Yields:
        token ids, attention mask and loss mask, each (batch, seq); the factor of the loss, with which the step's is one
        mean over all of its learned tokens; whether it is the rank's last micro-batch of an optimizer step.
    """
    if strategy.args.use_dynamic_batch:
        yield from by_tokens(dataloader, strategy, model)
        return
    for number, batch in enumerate(weighed(dataloader, strategy), 1):
        yield *batch, number % strategy.accumulated_gradient == 0


def by_tokens(
    dataloader: "DataLoader", strategy: "DeepspeedStrategy", model: "Actor"
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, bool]]:
    """`of_epoch` with `--micro_train_tokens`: a step has the rows that it would have with a number of rows.

    DeepSpeed, which is told of one micro-batch a step, starts anew after each backward pass that it is not told to add
    up (`dynamic-batch-accumulation.patch` is GRPO's).
    """
    args, dataset, sampler = strategy.args, dataloader.dataset, dataloader.sampler
    device, size, order = get_accelerator().current_device_name(), args.train_batch_size, in_order(sampler)
    for start in range(0, len(order) - size + 1, size):
        rows = [dataset[place] for place in order[start : start + size]]
        tokens = [int(attention.sum()) for _, attention, _ in rows]
        learned = [int(mask[..., :-1].sum()) for _, _, mask in rows]
        plan = packing.plan(tokens, args.micro_train_tokens, sampler.num_replicas)
        own, weights = plan[sampler.rank], packing.weights(plan, learned)[sampler.rank]
        mine = [index for batch in own for index in batch]
        sft_run.begin_step(sum(tokens[index] for index in mine), sum(learned[index] for index in mine))
        for number, (batch, weight) in enumerate(zip(own, weights, strict=True), 1):
            last = number == len(own)
            model.model.set_gradient_accumulation_boundary(last)
            tensors = dataloader.collate_fn([rows[index] for index in batch])
            yield *(tensor.to(device).squeeze(1) for tensor in tensors), weight, last


def held_out(dataloader: "DataLoader", strategy: "DeepspeedStrategy") -> "Iterator[Batch]":
    """The held-out rows of this rank in micro-batches, by the budget where there is one: each row once on all ranks.

    The sampler fills up the last ranks' shares with rows that others have, so that all make as many passes; of those
    nothing is learned here, or they would count twice.
    """
    args, dataset, sampler = strategy.args, dataloader.dataset, dataloader.sampler
    order = in_order(sampler)

    def row(place: int) -> "Batch":
        ids, attention, mask = dataset[order[place]]
        return ids, attention, mask * (place < len(dataset))

    if args.use_dynamic_batch:
        tokens = [int(dataset[index][1].sum()) for index in order]
        batches = packing.plan(tokens, args.micro_train_tokens, sampler.num_replicas)[sampler.rank]
    else:
        own, size = range(sampler.rank, len(order), sampler.num_replicas), args.micro_train_batch_size
        batches = [own[start : start + size] for start in range(0, len(own), size)]
    for batch in batches:
        yield dataloader.collate_fn([row(place) for place in batch])


def in_order(sampler: "DistributedSampler") -> list[int]:
    """The rows that are left of an epoch, of all ranks: each in turn takes the next one, as the sampler deals them."""
    shares = []
    for rank in range(sampler.num_replicas):
        other = copy.copy(sampler)
        other.rank = rank
        shares.append(list(other))
    return [row for together in zip(*shares, strict=True) for row in together]
