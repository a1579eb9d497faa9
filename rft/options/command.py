"""Read a training command with the trainer's own parser, taken from the installed source without importing the stack.

Building the parser the usual way means to import torch, Ray and vLLM, about 20 s; its source takes milliseconds, and
it cannot be out of date.
"""

import argparse
import ast
import importlib.util
from datetime import datetime
from pathlib import Path

from rft import options
from rft.options import remote_code
from rft.options.loss import require_sound_loss
from rft.options.refusals import REFUSALS, require_stoppable
from rft.record.eval_names import dataset_names

MODULE = "openrlhf.cli.train_ppo_ray"


def parse(command: list[str]) -> argparse.Namespace:
    """The options of an OpenRLHF command, defaults filled in, and settled as the trainer settles them before it starts.

    Args:
        command: the whole line, `… -m openrlhf.cli.train_ppo_ray --option value …`; the last of an option counts.

    Raises:
        ValueError: another command, or options that the trainer would refuse, with its own message.
    """
    if MODULE not in command:
        found = " ".join(command[:4]) or "nothing"
        raise ValueError(f"command: found {found!r}, wanted … -m {MODULE} --option value …; pass it after --")
    args = trainer_parser().parse_args(command[command.index(MODULE) + 1 :])
    return settle(args)


def trainer_parser() -> argparse.ArgumentParser:
    """The parser of the installed trainer, patched or not, with our options; ValueError instead of an exit.

    Raises:
        ValueError: OpenRLHF is not installed.
    """
    parser = Parser(prog=MODULE, add_help=False)
    names = {"parser": parser, "argparse": argparse, "datetime": datetime}
    tree = ast.parse(trainer_source().read_text())
    main = next(node for node in tree.body if isinstance(node, ast.If))
    execute([node for node in main.body if is_add_argument(node)], names)
    options.add(parser)
    return parser


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise ValueError(f"command: {message}; python -m {MODULE} --help lists the options")


def trainer_source() -> Path:
    spec = importlib.util.find_spec(MODULE.partition(".")[0])
    if spec is None:
        raise ValueError("found no openrlhf; wanted it installed; bash launch/train_grpo_tiny.sh installs everything")
    return Path(spec.submodule_search_locations[0], "cli", "train_ppo_ray.py")


def is_add_argument(node: ast.stmt) -> bool:
    call = getattr(node, "value", None)
    return isinstance(call, ast.Call) and ast.unparse(call.func) == "parser.add_argument"


def execute(nodes: list[ast.stmt], names: dict) -> None:
    """Run some statements of a module, alone, with `names` as its globals."""
    exec(compile(ast.Module(nodes, []), MODULE, "exec"), names)


def settle(args: argparse.Namespace) -> argparse.Namespace:
    """What the trainer's main sets after parsing, as far as checks depend on it (openrlhf/cli/train_ppo_ray.py).

    Raises:
        ValueError: what `rft.options.check` refuses and no other check looks at.
    """
    remote_code.refuse(args)
    require_stoppable(args)
    require_sound_loss(args)
    dataset_names(args.eval_dataset or "")
    for refuse in REFUSALS:
        refuse(args)
    if args.agent_func_path:
        args.remote_rm_url = "agent"
    if args.advantage_estimator != "gae":
        args.critic_pretrain = None
    elif args.critic_pretrain is None:
        args.critic_pretrain = args.pretrain if args.remote_rm_url else args.reward_pretrain
    if args.ring_attn_size > 1 or args.use_dynamic_batch:
        args.packing_samples = True
    if args.packing_samples and "flash_attention" not in args.attn_implementation:
        args.attn_implementation = "flash_attention_2"
    args.actors = args.actor_num_nodes * args.actor_num_gpus_per_node
    args.engines = args.vllm_num_engines or 0
    args.own_reference = args.init_kl_coef > 0 and (args.lora_rank == 0 or args.separate_reference_model)
    return args
