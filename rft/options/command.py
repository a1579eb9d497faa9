"""The one reading of a training command, with the trainer's own options; the last of an option counts.

Building the trainer's parser the usual way means to import torch, Ray and vLLM, about 20 s. Here its `add_argument`
statements are taken from the installed source, which takes milliseconds and cannot be out of date. On a machine without
OpenRLHF (a laptop that looks at a run, a fresh clone before its set-up or in the middle of it) they come from a copy,
`openrlhf_options.txt` and `openrlhf_sft_options.txt`, which a test holds equal to the installed ones.

    .venv/bin/python -m rft.options.command .venv/bin/python -m openrlhf.cli.train_ppo_ray --option value …

prints what launch/pipeline.sh reads: name and value of every option in turn, each with a NUL byte behind it. Exit
status 2 and one message where rft refuses the command.
"""

import argparse
import ast
import functools
import importlib.util
import os
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from rft import options
from rft.options import sft
from rft.options.refusals import refuse
from rft.options.settled import settle
from rft.options.unknown import MODULE, SFT_MODULE, explain

ADDED = {MODULE: options.add, SFT_MODULE: sft.add}  # our options of each trainer
COPY = Path(__file__).with_name("openrlhf_options.txt")  # of 0.9.3, patched; a statement a line, without help
SFT_COPY = COPY.with_name("openrlhf_sft_options.txt")


def main() -> int:
    try:
        args = parse(sys.argv[1:])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    supervised = module_of(sys.argv[1:]) == SFT_MODULE
    fields = vars(args) | {"gpus": args.actor_num_gpus_per_node if supervised else gpus_wanted(args)}
    for name, value in fields.items():
        sys.stdout.buffer.write(os.fsencode(f"{name}\0{as_text(value)}\0"))
    return 0


def as_text(value: object) -> str:
    """A value for a shell: a flag is 1 or empty, words have blanks between them, nothing is empty."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "" if value is None or value is False else "1" if value is True else str(value)


def parse(command: list[str]) -> argparse.Namespace:
    """The options of a command that is to be trained with, defaults filled in, settled as the trainer settles them.

    Args:
        command: the complete line, `… -m openrlhf.cli.train_ppo_ray --option value …`, or of `train_sft`.

    Raises:
        ValueError: another command, or options that the trainer would refuse, with its own message.
    """
    module = module_of(command)
    if module is None:
        found = " ".join(command[:4]) or "nothing"
        raise ValueError(f"command: found {found!r}, wanted … -m {MODULE} --option value …; pass it after --")
    args = trainer_parser(module).parse_args(words_of(command))
    if module == SFT_MODULE:
        sft.refuse(sft.settle(args, ranks_of(command)))
    else:
        refuse(settle(args))
    return args


def module_of(command: list[str]) -> str | None:
    """The trainer that a command starts; None for another one."""
    return next((module for module in ADDED if module in command), None)


def ranks_of(command: list[str]) -> int:
    """Processes of a command of `rft.runs.ranks`, as launch/sft.sh makes it; 1 without it."""
    place = command.index("rft.runs.ranks") + 1 if "rft.runs.ranks" in command else 0
    return int(command[place]) if place and command[place].isdigit() else 1


def recorded(command: list[str]) -> argparse.Namespace:
    """The options of the command of a run (`run.json`), defaults filled in: what today's trainer no longer knows, or
    would refuse, may be among them. Of an empty command, or another one, the defaults. A supervised run has those of
    GRPO's trainer too, as they are by default: readers of runs ask for either's.

    Raises:
        ValueError: a value that is of another type than its option's.
    """
    module = module_of(command) or MODULE
    parser = trainer_parser(module)
    for action in parser._actions:
        action.choices = None
    found = parser.parse_known_args(words_of(command))[0]
    if module == SFT_MODULE:
        own = vars(found) | {"actor_num_gpus_per_node": ranks_of(command)}
        found = argparse.Namespace(**vars(trainer_parser().parse_args([])) | own)
    return found


def given(command: list[str]) -> dict[str, list[str]]:
    """The words of each option that a command gives, by name, the last of a name; none behind a flag.

    Options that the trainer does not know, as older runs have them, take every word up to the next option; they come
    last. A value such as -5e-7, which argparse takes for an option, is lost unless written --name=-5e-7.
    """
    known, rest = _reader(module_of(command) or MODULE).parse_known_args(words_of(command))
    found, name = vars(known), None
    for word in rest:
        if re.match(r"--[A-Za-z]", word):
            name, separator, value = word[2:].partition("=")
            found[name] = [value] if separator else []
        elif name is not None:
            found[name].append(word)
    return found


@functools.cache
def _reader(module: str) -> argparse.ArgumentParser:
    """Of a trainer's options, each with any number of words, as they are, and none where it is not given."""
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for action in trainer_parser(module)._actions:
        reader.add_argument(*action.option_strings, dest=action.dest, nargs="*", default=argparse.SUPPRESS)
    return reader


def words_of(command: list[str]) -> list[str]:
    """The words behind the trainer's name."""
    module = module_of(command)
    return command[command.index(module) + 1 :] if module else []


def trainer_parser(module: str = MODULE) -> argparse.ArgumentParser:
    """The parser of a trainer with our options; it raises ValueError instead of ending the process."""
    parser = argparse.ArgumentParser(prog=module, add_help=False)
    exec(_compiled(module), {"parser": parser, "datetime": datetime})
    ADDED[module](parser)
    parser.error = functools.partial(_fail, parser)
    return parser


def _fail(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    raise ValueError(explain(parser, message))


@functools.cache
def _compiled(module: str):
    source = installed_source(module)
    installed = statements(source) if source else []
    copy = SFT_COPY if module == SFT_MODULE else COPY
    return compile("\n".join(installed) or copy.read_text(encoding="utf-8"), module, "exec")


def installed_source(module: str = MODULE) -> Path | None:
    """The installed trainer's file, patched or not; None where OpenRLHF is not installed, or only half of it."""
    package, _, name = module.partition(".")
    spec = importlib.util.find_spec(package)
    file = Path(spec.submodule_search_locations[0], f"{name.replace('.', '/')}.py") if spec else None
    return file if file and file.is_file() else None


def statements(source: Path) -> list[str]:
    """The `parser.add_argument(…)` statements of the trainer's main block, in order; none of a file that is cut."""
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except SyntaxError:
        return []
    blocks = [node.body for node in tree.body if isinstance(node, ast.If)]
    calls = [getattr(node, "value", None) for block in blocks[:1] for node in block]
    return [
        ast.unparse(call)
        for call in calls
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "parser.add_argument"
    ]


def gpus_wanted(args: argparse.Namespace) -> int:
    """GPUs (Ray's, logical on a CPU) of all roles together, as the trainer's placement groups ask for them."""
    if hasattr(args, "dataset"):  # which a supervised training alone has: it is its ranks, one GPU each
        return args.actor_num_gpus_per_node
    shared = args.colocate_all_models
    total = args.actors
    if not (shared and not args.async_train):
        total += args.engines * args.vllm_tensor_parallel_size
    if args.own_reference and not (shared or args.colocate_actor_ref):
        total += args.ref_num_nodes * args.ref_num_gpus_per_node
    reward = 0 if args.remote_rm_url else args.reward_num_nodes * args.reward_num_gpus_per_node
    critic = args.critic_num_nodes * args.critic_num_gpus_per_node if args.critic_pretrain else 0
    if not shared:
        total += max(reward, critic) if critic and args.colocate_critic_reward else reward + critic
    return total


if __name__ == "__main__":
    sys.exit(main())
