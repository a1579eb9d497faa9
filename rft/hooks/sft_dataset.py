"""`openrlhf.cli.train_sft`: its dataset, made of `rft.hooks.sft_rows`, and what its micro-batches weigh."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import torch
from deepspeed.accelerator import get_accelerator

from rft.hooks import sft_run
from rft.hooks.chat_date import dated
from rft.hooks.loss import token_weights
from rft.hooks.reasoning_effort import chosen
from rft.hooks.sft_rows import Tokens, learnable

if TYPE_CHECKING:
    from openrlhf.utils.deepspeed import DeepspeedStrategy
    from torch.utils.data import DataLoader
    from transformers import PreTrainedTokenizerBase


def of_trainer(
    rows: Iterable[dict],
    tokenizer: "PreTrainedTokenizerBase",
    max_len: int,
    strategy: "DeepspeedStrategy",
    every_turn: bool,
) -> list[Tokens]:
    """The conversations of a training file, with one date in all prompts, as in GRPO; what was left out is printed.

    Args:
        strategy: its `args` have `input_key` and `output_key`.
        every_turn: `--multiturn`.

    Raises:
        SystemExit: a row that is nothing to learn from, or no row fits, in one message.
    """
    keys = {"input_key": strategy.args.input_key, "output_key": strategy.args.output_key}
    try:
        options = dated() | chosen(tokenizer, getattr(strategy.args, "reasoning_effort", None))
        made = learnable(rows, tokenizer, max_len, **keys, every_turn=every_turn, options=options)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    learned = sum(sum(each.learned) for each in made.conversations)
    strategy.print(
        f"supervised rows: {len(made.conversations)} conversations with {learned} tokens to learn; {made.too_long} "
        f"longer than --max_len {max_len} left out, none cut"
    )
    return made.conversations


def item(conversation: Tokens) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `SFTDataset` gives its collator: token ids, attention mask and loss mask, each (1, seq).

    Column j of the loss mask speaks of the prediction made there, of the token in column j + 1; the last is 0.
    """
    ids = torch.tensor([conversation.ids])
    predicts = [*conversation.learned[1:], False]
    return ids, torch.ones_like(ids), torch.tensor([predicts], dtype=torch.float32)


def weighed(
    dataloader: "DataLoader", strategy: "DeepspeedStrategy"
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]]:
    """The micro-batches of an epoch on this rank's device, each with the factor of its loss.

    With it the mean over a micro-batch becomes its share of one mean over all learned tokens of the optimizer step
    (`rft.hooks.loss.token_weights`). Micro-batches at the end of an epoch that make no whole step are left out, as the
    trainer's count of steps has it: the next epoch, and a resume, begin with a step.

    Yields:
        token ids, attention mask and loss mask, each (batch, seq), and the factor.
    """
    device, size = get_accelerator().current_device_name(), strategy.accumulated_gradient

    def total(tensor: torch.Tensor) -> torch.Tensor:
        return strategy.all_reduce(tensor, "sum")

    batches = iter(dataloader)
    while len(step := list(islice(batches, size))) == size:
        counts = [int(mask[..., :-1].sum()) for _, _, mask in step]
        sft_run.begin_step(sum(int(attention.sum()) for _, attention, _ in step), sum(counts))
        for batch, weight in zip(step, token_weights(counts, size, strategy.world_size, total), strict=True):
            yield *(tensor.to(device).squeeze(1) for tensor in batch), weight
