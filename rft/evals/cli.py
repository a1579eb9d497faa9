"""What the evaluation scripts share: options, outputs, and one clear message for bad input."""

import argparse
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rft.agents.settings import Settings as AgentSettings
from rft.code_server import CodeServerError
from rft.evals import refusals
from rft.evals.agent import AGENTS, opened
from rft.evals.scores import MODES
from rft.options import remote_code
from rft.record.environment import stack
from rft.record.files import replace_json, replace_text
from rft.retriever import RetrieverError

if TYPE_CHECKING:
    from rft.evals.models import Model


TASKS = {"mbpp": "code/mbpp_test.jsonl", "humaneval": "code/humaneval.jsonl"}  # in DATA_ROOT


def named_path(text: str) -> tuple[str, Path]:
    """NAME=PATH of an option. Raises argparse's error for anything else."""
    name, separator, path = text.partition("=")
    if not separator or not name or not path:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted NAME=PATH")
    return name, Path(path)


def add_dataset_options(parser: argparse.ArgumentParser) -> None:
    """--dataset and --task, of which one is needed; `datasets` reads them."""
    parser.add_argument("--dataset", action="append", default=[], type=Path, metavar="FILE.jsonl")
    parser.add_argument(
        "--task", action="append", default=[], choices=list(TASKS),
        help="a code task of data/prepare_code_data.py, in DATA_ROOT/code (default .cache/rft/data/code)",
    )  # fmt: skip


def datasets(args: argparse.Namespace) -> list[Path]:
    """The files that `add_dataset_options` names. Raises ValueError for none, or a task whose file is not made."""
    if not args.dataset and not args.task:
        raise ValueError(
            "found neither --dataset nor --task; wanted problems; e.g. --dataset heldout.jsonl, --task mbpp"
        )
    root = Path(os.environ.get("DATA_ROOT") or ".cache/rft/data")
    for task in args.task:
        if not (root / TASKS[task]).is_file():
            raise ValueError(
                f"--task {task}: found no file {root / TASKS[task]}; wanted the task's problems; make them with: "
                f".venv/bin/python data/prepare_code_data.py --out {root}"
            )
    return args.dataset + [root / TASKS[task] for task in args.task]


def add_sampling_options(parser: argparse.ArgumentParser, mode: str = "greedy_pass@1") -> None:
    """Options of `rft.evals.settings.Settings`."""
    parser.add_argument("--mode", choices=list(MODES), default=mode, help=f"default {mode}")
    parser.add_argument("--samples", type=int, help="samples a problem, at least k of pass@k (default: the mode's)")
    parser.add_argument("--temperature", type=float, help="default: the mode's")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="of sampling; sample i of a problem has one for all models")
    parser.add_argument("--max-tokens", type=int, default=4096, help="completion length limit")
    parser.add_argument("--max-prompt-tokens", type=int, default=1024)
    parser.add_argument("--system-prompt", metavar="TEXT", help="put before each problem; @FILE reads it from a file")
    parser.add_argument("--reasoning-effort", choices=("low", "medium", "high"), help="default: the template's own")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep samples here; a second run draws the rest only")
    parser.add_argument("--base", type=Path, metavar="DIR", help="base of the adapters, where it has moved")
    parser.add_argument(
        "--serve",
        choices=("exact", "merged", "native"),
        default="exact",
        help="adapters as the trainer's --lora_serving does, or by vLLM's own LoRA (native)",
    )
    parser.add_argument(
        "--head-dtype", choices=("float32", "model"), default="float32", help="of logits, as the trainer's --head_dtype"
    )
    parser.add_argument(
        "--lora-rank",
        type=int,
        default=0,
        metavar="R",
        help="with exact: room for this rank in a base's engine without adapters too, so that its kernels are the same",
    )
    parser.add_argument(
        "--reference", choices=("cpu", "cuda", "none"), default="cpu", help="where the probe's PEFT model runs"
    )
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument(
        "--agent", choices=AGENTS,
        help="samples are conversations: `search` asks the retriever at RETRIEVER_URL, with the limits of RFT_AGENT_*",
    )  # fmt: skip
    add_trust_option(parser)


def add_trust_option(parser: argparse.ArgumentParser) -> None:
    """The trainer's --trust_remote_code."""
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run code that a checkpoint brings along (docs/security.md)"
    )


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Options of `report`."""
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="write results and records here")
    parser.add_argument("--html", type=Path, metavar="FILE.html", help="write one self-contained page here")


def settings(args: argparse.Namespace, **more: object):
    """`rft.evals.settings.Settings` of parsed options.

    Raises ValueError where the system prompt's file is not there, the platform cannot serve as asked, or a variable of
    an agent has no value that it may have.
    """
    import torch

    from rft.evals.settings import Settings

    if args.serve == "native" and not torch.cuda.is_available():
        raise ValueError("found no CUDA device; vLLM's own LoRA of gpt-oss needs one; use --serve exact")
    system_prompt = args.system_prompt
    if system_prompt and system_prompt.startswith("@"):
        file = Path(system_prompt[1:])
        if not file.is_file():
            raise ValueError(f"--system-prompt: found no file {file}; wanted a text file, or the text itself")
        system_prompt = file.read_text(encoding="utf-8")
    same = ("mode", "samples", "temperature", "top_p", "seed", "max_tokens", "max_prompt_tokens", "reasoning_effort")
    same += ("cache", "tensor_parallel_size", "lora_rank", "head_dtype")
    return Settings(
        **{name: getattr(args, name) for name in same},
        system_prompt=system_prompt,
        serving=args.serve,
        reference=None if args.reference == "none" else args.reference,
        agent=AgentSettings.from_environment() if args.agent else None,
        **more,
    )


def guarded(name: str, run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Exit status of `run`, once `rft.evals.refusals.refuse` lets its options pass; bad input and full disks become one
    message and status 2."""
    if stack() == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # its torch would find GPUs that its vLLM cannot use
    remote_code.settle(getattr(args, "trust_remote_code", False))
    try:
        refusals.refuse(args)
        return run(args)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        kept = "; free space and run the same command again: finished samples are kept in --cache" if full else ""
        print(f"{name}: {error}{kept}", file=sys.stderr)
    except (ValueError, CodeServerError, RetrieverError) as error:
        print(f"{name}: {error}", file=sys.stderr)
    return 2


def require_ready(models: list["Model"], datasets: list[Path], args: argparse.Namespace) -> None:
    """`rft.evals.refusals.require_ready` of parsed options; then the retriever of an agent is asked."""
    length = args.max_prompt_tokens + args.max_tokens
    refusals.require_ready(models, datasets, length, args.tensor_parallel_size, bool(args.agent))
    if args.agent:
        opened(AgentSettings.from_environment(), models, length)


def report(results: list[dict], args: argparse.Namespace) -> None:
    """The table on the terminal, and the files that were asked for."""
    from rft.evals.table import print_results

    print_results(results)
    if args.output:
        replace_json(args.output, results)
    if args.html:
        from rft.evals.page import page

        replace_text(args.html, page(results))
