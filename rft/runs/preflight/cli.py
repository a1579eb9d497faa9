"""Go or no-go: check what a training command needs, in seconds, before the trainer and the engines load a model.

    .venv/bin/python -m rft.runs.preflight [--json] --run-dir DIR [--also-evaluated FILE] -- \\
        .venv/bin/python -m openrlhf.cli.train_ppo_ray --pretrain …

Prints one page, a line a check: verdict, measured value, repair. Leaves it as DIR/preflight.json where DIR exists.
Exit status 0 go (warnings included), 1 no-go, 2 bad use.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rft.options import command
from rft.record.environment import set_environment
from rft.record.files import replace_json
from rft.runs.preflight import (
    batches,
    data,
    disk,
    driver,
    harmony,
    learning_rate,
    machine,
    memory,
    model,
    programs,
    search,
    software,
    supervised,
)
from rft.runs.preflight.gpus import read_gpus
from rft.runs.preflight.lines import NO_GO, Line, read_config


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m rft.runs.preflight",
        usage="%(prog)s [--json] --run-dir DIR [--also-evaluated FILE] -- COMMAND …",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print the page as JSON")
    parser.add_argument("--run-dir", type=Path, required=True, metavar="DIR", help="the run directory")
    parser.add_argument(
        "--also-evaluated",
        action="append",
        default=[],
        metavar="FILE",
        help="problems that the policy is evaluated on outside the loop; several: separated by commas, or given again",
    )
    given = sys.argv[1:] if arguments is None else arguments
    place = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:place])
    started = time.monotonic()
    try:
        if options.run_dir.exists() and not options.run_dir.is_dir():
            raise ValueError(f"--run-dir: found the file {options.run_dir}; wanted a folder; pass another --run-dir")
        args = command.parse(given[place + 1 :])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    set_environment()  # it judges the memory by what the training will read
    also_evaluated = ",".join(options.also_evaluated)
    if command.module_of(given) == command.SFT_MODULE:
        result = list(supervised.check_all(args, also_evaluated))
    else:
        result = list(check_all(args, options.run_dir, also_evaluated))
    document = as_document(result, time.monotonic() - started)
    if options.run_dir.is_dir():
        replace_json(options.run_dir / "preflight.json", document)
    if options.json:
        print(json.dumps(document, indent=1))
    else:
        show(result, document)
    return 0 if document["go"] else 1


def check_all(args: argparse.Namespace, run_dir: Path, also_evaluated: str = "") -> Iterator[Line]:
    """Every line of the page, in its order."""
    yield from software.check_patches()
    yield from software.check_nodes()
    yield from software.check_versions()
    model_lines = model.check_model(args)
    yield from model_lines
    yield from model.check_resume(args)
    prompts = data.read_prompts(args, also_evaluated)
    yield from prompts.lines
    yield from model.check_reward(args)
    yield from programs.check_programs(args, also_evaluated)
    yield from search.check_search(args, also_evaluated)
    sizes = batches.check_sizes(args)
    yield from sizes
    if not sizes:
        yield from batches.check_batches(args)
        yield from batches.check_steps(args, prompts.count)
        known = read_config(args.pretrain) if model_lines[0].verdict != NO_GO else {}
        yield from learning_rate.check_learning_rate(args, known, prompts.count)
    if model_lines[0].verdict != NO_GO:
        config = read_config(args.pretrain)
        yield from check_model_files(args, config, prompts)
        if not sizes:
            yield from check_resources(args, config, run_dir, prompts)
    yield from driver.check_driver()
    yield from machine.check_ports()
    yield from machine.check_ray(run_dir)
    yield from machine.check_offline()
    yield from machine.check_wandb(args)
    yield from machine.check_git()


def check_model_files(args: argparse.Namespace, config: dict, prompts: data.Prompts) -> Iterator[Line]:
    """The model's rules, its tokenizer and template, and the lengths that both lead to."""
    yield from model.check_attention(args, config)
    yield from model.check_lora(args)
    folder, longest = Path(args.pretrain), None
    if prompts.longest:
        try:
            tokenizer = harmony.load_tokenizer(folder)
        except ValueError as error:
            yield Line("tokenizer", NO_GO, str(error), "download or make the checkpoint again")
            return
        chat = harmony.as_chat(prompts.longest[0]) if args.apply_chat_template else None
        template = harmony.check_harmony(folder, tokenizer, chat)
        yield from template
        if template[0].verdict != NO_GO:
            longest = harmony.longest_prompt(folder, tokenizer, prompts.longest, args.apply_chat_template)
    yield from model.check_lengths(args, config, longest)
    if search.is_agent(args):
        yield from search.check_room(args, longest)


def check_resources(args: argparse.Namespace, config: dict, run_dir: Path, prompts: data.Prompts) -> Iterator[Line]:
    """GPUs, memory and disks against what the run will take."""
    gpus = read_gpus()
    alone = "RAY_ADDRESS" not in os.environ or software.OWN_CLUSTER in os.environ
    yield from batches.check_devices(args, config, len(gpus) if gpus is not None and alone else None)
    yield from memory.check_gpu_memory(args, config, gpus)
    yield from memory.check_host_memory(args, config)
    yield from disk.check_disk(args, config, run_dir, prompts.count or 0, prompts.eval_count)


def as_document(result: list[Line], seconds: float) -> dict:
    """What --json prints."""
    go = all(line.verdict != NO_GO for line in result)
    return {"go": go, "seconds": round(seconds, 2), "checks": [line._asdict() for line in result]}


def show(result: list[Line], document: dict) -> None:
    """Print the page."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"go": "green", "warn": "yellow", "no-go": "bold red"}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("measured", ratio=3, overflow="fold")
    table.add_column("repair", ratio=2, overflow="fold")
    for line in result:
        verdict = Text(line.verdict, style=colours[line.verdict])
        table.add_row(line.name, verdict, Text(line.measured), Text(line.repair))
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table)
    counts = [f"{sum(line.verdict == verdict for line in result)} {verdict}" for verdict in colours]
    answer = Text("go" if document["go"] else "no-go", style=colours["go" if document["go"] else "no-go"])
    console.print(answer, Text(f"({', '.join(counts)}; {document['seconds']} s)"))
