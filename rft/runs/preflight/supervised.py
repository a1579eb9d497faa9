"""What a supervised training needs: the checks of GRPO that it shares, its rows, and the memory of the actor alone."""

import warnings
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rft import packing
from rft.data.check import check_file
from rft.data.row_files import read_rows
from rft.hooks.chat_date import dated
from rft.hooks.reasoning_effort import chosen
from rft.hooks.sft_rows import Learnable, learnable
from rft.options.sft import ranks_of
from rft.runs.preflight import batches, data, decontamination, driver, machine, model, software
from rft.runs.preflight.gpus import read_gpus
from rft.runs.preflight.lines import GO, NO_GO, WARN, Line, read_config
from rft.runs.preflight.memory import judged, kept_products
from rft.runs.preflight.resident import Sizes, peak_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_all(args: Namespace, also_evaluated: str = "") -> Iterator[Line]:
    """Every line of the page, in its order; `also_evaluated` are the problems of the format check."""
    yield from software.check_patches()
    yield from software.check_versions()
    found = model.check_model(args)
    yield from found
    yield from model.check_resume(args)
    yield from batches.check_intervals(args)
    if found[0].verdict != NO_GO:
        config = read_config(args.pretrain)
        yield from model.check_attention(args, config)
        yield from model.check_lora(args)
        rows = list(check_rows(args))
        yield from rows
        if not any(line.verdict == NO_GO for line in rows):
            yield from check_apart(args, also_evaluated)
        yield from check_memory(args, config)
    yield from driver.check_driver()
    yield from machine.check_offline()
    yield from machine.check_wandb(args)
    yield from machine.check_git()


def check_rows(args: Namespace) -> Iterator[Line]:
    """Each file's conversations as the trainer will make them, by its own code."""
    with warnings.catch_warnings(action="ignore"):  # of what torch's import deprecates
        from transformers import AutoTokenizer  # seconds, which other checks need not pay

    try:
        tokenizer = AutoTokenizer.from_pretrained(args.pretrain)
    except (ValueError, OSError) as error:
        yield Line("tokenizer", NO_GO, str(error), "download or make the checkpoint again")
        return
    try:
        shown = dated() | chosen(tokenizer, args.reasoning_effort)
    except ValueError as error:
        yield Line("prompts", NO_GO, str(error), "as GRPO afterwards has it")
        return
    for name, option, most in (("rows", "dataset", args.max_samples), ("held-out rows", "eval_dataset", None)):
        files = data.local_files(getattr(args, option))
        if not files:
            continue
        if others := [other for other, path in files.items() if path is None]:
            yield Line(name, WARN, f"{', '.join(others)} is no JSONL file: not checked", f"--{option} FILE.jsonl")
            continue
        try:
            made = made_of(files, tokenizer, args, most, shown)
        except (ValueError, OSError) as error:
            yield Line(name, NO_GO, str(error), "make the file again (docs/sft.md)")
            continue
        count, learned = len(made.conversations), sum(sum(each.learned) for each in made.conversations)
        longest = max(len(each.ids) for each in made.conversations)
        measured = f"{count} conversations, {learned:,} tokens to learn, the longest {longest} tokens"
        yield Line(name, WARN if made.too_long else GO, *_left_out(measured, made.too_long, args.max_len))
        if name == "rows":
            yield _steps(count, longest, args)
            yield from _too_late(count // args.train_batch_size * args.max_epochs, args)


def made_of(
    files: dict[str, Path], tokenizer: "PreTrainedTokenizerBase", args: Namespace, most: int | None, shown: dict
) -> Learnable:
    """The conversations of files, the first `most` rows of all of them, as the trainer makes them.

    Args:
        shown: date and reasoning effort, for the chat template.

    Raises:
        ValueError: file and line of what is no row, or the row that cannot be learned, counted through the files.
    """
    rows = [row for path in files.values() for _, row in read_rows(path)]
    try:
        return learnable(
            rows[:most], tokenizer, args.max_len, input_key=args.input_key, output_key=args.output_key,
            every_turn=args.multiturn, options=shown,
        )  # fmt: skip
    except ValueError as error:
        raise ValueError(f"{','.join(files)}: {error}") from None


def _left_out(measured: str, too_long: int, max_len: int) -> tuple[str, str]:
    if not too_long:
        return measured, ""
    return f"{measured}; {too_long} longer than --max_len {max_len} are left out", "a larger --max_len keeps them"


def _steps(rows: int, longest: int, args: Namespace) -> Line:
    if args.dataset_probs:
        repair = "leave --dataset_probs out: the files one behind the other"
        return Line("steps", WARN, "not counted: --dataset_probs repeats rows until each file is used up", repair)
    steps = rows // args.train_batch_size
    if not steps:
        measured = f"{rows} conversations fill no batch of {args.train_batch_size}"
        return Line("steps", NO_GO, measured, f"--train_batch_size {rows} or less")
    measured = f"{args.max_epochs} epochs of {steps} steps, {args.train_batch_size} conversations each"
    if not args.micro_train_tokens:
        return Line("steps", GO, measured)
    most = packing.most(args.train_batch_size, longest, args.micro_train_tokens, ranks_of(args))
    measured += f", in micro-batches of {args.micro_train_tokens:,} tokens: at most {most} a rank and step"
    if args.actor == "eager":
        padded = f"{measured}; --actor eager pads each row to the longest of its micro-batch, beyond the budget"
        return Line("steps", WARN, padded, "--actor resident, or --micro_train_tokens 0")
    return Line("steps", GO, measured)


def _too_late(steps: int, args: Namespace) -> Iterator[Line]:
    """A checkpoint that would first come behind the run's last step, where the adapter is saved anyway."""
    if steps and args.save_steps > steps and not args.dataset_probs:
        measured = f"--save_steps {args.save_steps}: no checkpoint in {steps} steps"
        yield Line("steps", WARN, measured, f"--save_steps {max(1, steps // 4)}")


def check_apart(args: Namespace, also_evaluated: str) -> Iterator[Line]:
    """What the rows share with held-out rows and with the problems of the format check; these are looked into, too.

    Near-duplicates are asked for of the latter alone: a file of rows and its held-out part are of one distribution.
    """
    training, held_out, asked = map(data.local_files, (args.dataset, args.eval_dataset, also_evaluated))
    found = training | held_out | asked
    checked = {path: check_file(path) for path in filter(None, found.values())}
    trained, evaluated, problems = ([p for p in part.values() if p] for part in (training, held_out | asked, asked))
    for path in problems:
        if faults := checked[path][0]:
            repair = f".venv/bin/python -m rft.data check {path}; EVAL_DATASET=FILE names another"
            yield Line("format check", NO_GO, faults[0], repair)
            return
    hashes = {path: hashed for path, (_, hashed) in checked.items()}
    yield from data.overlaps(trained, evaluated, hashes, [name for name, path in found.items() if path is None])
    if trained and problems:
        yield from decontamination.check(trained, problems, hashes)


def check_memory(args: Namespace, config: dict) -> list[Line]:
    """The resident actor's peak on a GPU: a full budget, or a micro-batch of the longest rows. No other is known."""
    gpus, ranks = read_gpus(), args.actor_num_gpus_per_node
    if not gpus or args.actor != "resident":
        return []
    if args.micro_train_tokens:
        tokens, option = args.micro_train_tokens, "--micro_train_tokens"
        shape = f"micro-batches of {tokens:,} tokens"
    else:
        tokens, option = args.micro_train_batch_size * args.max_len, "--micro_train_batch_size"
        shape = f"micro-batches of {args.micro_train_batch_size} x {args.max_len} tokens"
    # Held-out rows come in micro-batches of the same size, without gradients.
    sizes = Sizes(tokens, tokens, args.gradient_checkpointing, args.zero_stage, ranks, args.shard_experts)
    trained, free = model.trained_parameters(args, config), min(gpu["free"] for gpu in gpus[:ranks])
    need, kept = (peak_bytes(config, sizes, trained, h_kept) for h_kept in (False, True))
    repair = f"a smaller {option} or --max_len, or --gradient_checkpointing"
    return [judged("actor", need, free, repair, f" ({shape}){kept_products(kept - need, free - need)}")]
