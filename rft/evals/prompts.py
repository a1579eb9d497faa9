"""What the model is asked: problems rendered and tokenised as OpenRLHF's single-turn executor does it."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rft.grading import open_channel
from rft.hooks import reasoning_effort
from rft.hooks.chat_date import dated
from rft.options.remote_code import trusted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Prompt(NamedTuple):
    """One rendered problem."""

    text: str
    tokens: list[int]
    digest: str  # of the text: template, system prompt and reasoning effort are in it
    channel: str | None  # Harmony channel that the prompt leaves open


def load_tokenizer(base: Path):
    """The tokenizer of a checkpoint, read without starting an engine."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(base, trust_remote_code=trusted())


def render(
    tokenizer: "PreTrainedTokenizerBase", problems: list[dict], system_prompt: str | None, effort: str | None
) -> list[Prompt]:
    """Every problem as the engine gets it.

    Args:
        tokenizer: with a chat template.
        problems: see `rft.problems.read_problems`.
        system_prompt: put before the messages; None leaves them alone.
        effort: the template's `reasoning_effort`; None leaves it to the template.

    Raises:
        ValueError: the tokenizer has no chat template, the template ignores the effort, or a problem has a system
            prompt of its own beside the given one.
    """
    if not tokenizer.chat_template:
        raise ValueError(
            f"{tokenizer.name_or_path}: found no chat template; wanted chat_template.jinja beside the tokenizer"
        )

    options = dated() | reasoning_effort.chosen(tokenizer, effort)
    prompts = []
    for problem in problems:
        messages = problem["input"]
        if system_prompt is not None:
            if any(message.get("role") in ("system", "developer") for message in messages):
                raise ValueError(f"problem {problem['id']!r} has a system prompt of its own; leave --system-prompt out")
            messages = [{"role": "system", "content": system_prompt}, *messages]
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
        tokens = tokenizer(rendered, add_special_tokens=False)["input_ids"]
        prompts.append(Prompt(rendered, tokens, digest(rendered), open_channel(rendered)))
    return prompts


def digest(text: str) -> str:
    """Identity of a rendered prompt; its tokens follow from it and from the tokenizer, which is part of the base."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def require_short(problems: list[dict], prompts: list[Prompt], limit: int) -> None:
    """Raise ValueError where a prompt has more than `limit` tokens: it would be cut, and the number would flatter."""
    longest = max(range(len(prompts)), key=lambda i: len(prompts[i].tokens))
    if len(prompts[longest].tokens) > limit:
        raise ValueError(
            f"problem {problems[longest]['id']!r}: found a prompt of {len(prompts[longest].tokens)} tokens, wanted at "
            f"most {limit}; pass --max-prompt-tokens {len(prompts[longest].tokens)}"
        )
