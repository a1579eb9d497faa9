"""Check what a training command will read, in about a second, before the trainer and the engines load a model.

.venv/bin/python -m rft.runs.inputs .venv/bin/python -m openrlhf.cli.train_ppo_ray --pretrain … --prompt_data …
"""

import json
import sys
from pathlib import Path

from rft.checkpoint_check import require_gpt_oss
from rft.options.command import parse
from rft.problems import shorten


def main() -> int:
    try:
        check_command(sys.argv[1:])
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def check_command(command: list[str]) -> None:
    """Raise ValueError for the first option of a training command, or input, that the trainer could not use."""
    args = parse(command)
    if args.pretrain:
        require_gpt_oss(args.pretrain)
    names = f"{args.prompt_data or ''},{args.eval_dataset or ''}".split(",")  # each of the two may name several
    for path in filter(None, map(str.strip, names)):
        check_prompts(Path(path), args.input_key, args.label_key, args.apply_chat_template)
    if args.remote_rm_url and args.remote_rm_url.endswith(".py") and not Path(args.remote_rm_url).is_file():
        raise ValueError(
            f"reward function: found no file {args.remote_rm_url}; pass an existing one with --remote_rm_url"
        )


def check_prompts(path: Path, input_key: str, label_key: str | None, templated: bool) -> None:
    """Raise ValueError, naming line and field, unless every line of a JSONL prompt file can be trained on.

    Args:
        path: the file; names that do not end in .jsonl (hub datasets, folders) are OpenRLHF's business.
        input_key: field of the prompt: text, or where it is `templated` chat messages; of text the template makes one
            message of the user.
        label_key: field of the label, None where there is none.
        templated: whether the chat template is applied.
    """
    if path.suffix != ".jsonl":
        return
    if not path.is_file():
        raise ValueError(f"found no prompt file {path}; .venv/bin/python -m rft.data make, or correct the path")
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: found {error}; wanted UTF-8; convert the file, e.g. iconv -t UTF-8") from None
    if lines == [""]:
        raise ValueError(f"{path}: found no prompts, wanted one JSON object a line; make the file again")
    kinds, wanted = ((str, list), "chat messages or text") if templated else (str, "text")
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error.msg}); make the file again") from None
        found = row.get(input_key) if isinstance(row, dict) else row
        if not isinstance(row, dict) or not isinstance(found, kinds) or not found:
            repair = "; --apply_chat_template makes text of chat messages" if isinstance(found, list) else ""
            raise ValueError(f"{path}, line {number}: field {input_key!r} is {shorten(found)}, wanted {wanted}{repair}")
        if label_key and row.get(label_key) in (None, ""):
            raise ValueError(f"{path}, line {number}: field {label_key!r} is empty, wanted the expected answer")


if __name__ == "__main__":
    sys.exit(main())
