"""The reasoning effort in prompts, the same way in training, its evaluations and evaluation after it."""

from typing import TYPE_CHECKING

from rft.hooks.chat_date import dated
from rft.options.effort import EFFORTS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def chosen(tokenizer: "PreTrainedTokenizerBase", effort: str | None) -> dict:
    """Arguments for the tokenizer's `apply_chat_template`: the effort, or none, which leaves it to the template.

    Raises:
        ValueError: the template writes the same whatever the effort is.
    """
    if effort is None:
        return {}
    chat = [{"role": "user", "content": "1 + 1 ="}]
    texts = {tokenizer.apply_chat_template(chat, tokenize=False, reasoning_effort=each, **dated()) for each in EFFORTS}
    if len(texts) < len(EFFORTS):
        raise ValueError(
            f"{tokenizer.name_or_path}: found a chat template that takes no reasoning_effort; wanted one that writes "
            f"{', '.join(EFFORTS)}; leave the effort out"
        )
    return {"reasoning_effort": effort}
