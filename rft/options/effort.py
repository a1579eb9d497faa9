"""`--reasoning_effort`: how much gpt-oss is told to think, by its chat template's own argument."""

import json
from argparse import Namespace
from pathlib import Path

EFFORTS = ("low", "medium", "high")


def require_used(args: Namespace) -> None:
    """Refuse an effort that no prompt would show: no template is applied, or the checkpoint's knows none.

    A model of the hub, which is no directory, is left to `rft.hooks.reasoning_effort`.

    Raises:
        ValueError: see above.
    """
    effort = args.reasoning_effort
    if effort is None:
        return
    if not args.apply_chat_template:
        raise ValueError(
            "--reasoning_effort is an argument of the chat template, and prompts go in without one\n"
            f"  found:  --reasoning_effort {effort} without --apply_chat_template\n"
            "  wanted: both\n  repair: --apply_chat_template, or leave --reasoning_effort out"
        )
    folder = Path(args.pretrain)
    if folder.is_dir() and "reasoning_effort" not in template_of(folder):
        raise ValueError(
            "--reasoning_effort would change no prompt\n"
            f"  found:  a chat template without reasoning_effort in {folder}\n"
            "  wanted: one that writes it, as gpt-oss's does\n"
            "  repair: leave --reasoning_effort out, or use the chat_template.jinja that came with the checkpoint"
        )


def template_of(folder: Path) -> str:
    """The text of a checkpoint's chat template, empty where it has none; a list of named ones as JSON."""
    file, config = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    try:
        return json.dumps(json.loads(config.read_text(encoding="utf-8")).get("chat_template") or "")
    except (OSError, ValueError, AttributeError):
        return ""  # whoever loads the file says what is wrong with it
