"""What an evaluation cannot work with, noticed before an engine loads: samples cost hours, and need a place to go."""

import tempfile
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rft.code.labels import is_code_label
from rft.grading.short_answer import is_search_label
from rft.options.actor import read_config
from rft.options.ranges import Range, fits, words
from rft.problems import read_problems

if TYPE_CHECKING:
    from rft.evals.models import Model

LEAST_ONE = Range(1, float("inf"), 1)
LIMITS = {
    "samples": LEAST_ONE,
    "temperature": Range(0, float("inf"), 0),
    "top_p": Range(0, 1, 1, with_low=False),
    "max_tokens": Range(1, float("inf"), 4096),
    "max_prompt_tokens": Range(1, float("inf"), 1024),
    "max_model_len": Range(1, float("inf"), 4096),
    "tensor_parallel_size": LEAST_ONE,
    "lora_rank": Range(0, float("inf"), 0),
    "limit": LEAST_ONE,
    "keep": Range(1, float("inf"), 2),
    "step": Range(0, float("inf"), 0),
    "allow": Range(0, float("inf"), 0),
}
FILES = ("output", "html")  # options that name a file to write
FOLDERS = ("cache", "merge_output")  # options that name a folder to write into
READ = ("dataset", "probe", "posthoc")  # options whose files are read, and must not be written


def refuse(args: Namespace) -> None:
    """Refuse values and places of parsed options, by the names above; nothing is made or changed.

    Raises:
        ValueError: the first one: found, wanted, repair.
    """
    for name, bounds in LIMITS.items():
        value = getattr(args, name, None)
        if isinstance(value, int | float) and not fits(value, bounds):  # one command's --samples is a file
            option = option_of(name)
            raise ValueError(f"{option}: found {value:g}; wanted {words(bounds)}; e.g. {option} {bounds.repair:g}")
    places = {name: getattr(args, name, None) for name in FILES}
    for name, file in places.items():
        if file:
            require_file_place(option_of(name), file)
            require_other_file(option_of(name), file, args)
    if places["output"] and places["html"] and places["output"].resolve() == places["html"].resolve():
        raise ValueError(f"--output, --html: found {places['html']} for both; wanted two files; pass another --html")
    for name in FOLDERS:
        if folder := getattr(args, name, None):
            require_folder_place(option_of(name), folder)


def option_of(name: str) -> str:
    """How an attribute of parsed options is written on a command line."""
    return f"--{name.replace('_', '-')}"


def require_file_place(option: str, file: Path) -> None:
    """Raise ValueError where no file can be written: it is a folder, or its folder can be neither used nor made."""
    if file.is_dir():
        raise ValueError(f"{option}: found the folder {file}; wanted a file to write; pass {option} {file / 'NAME'}")
    require_folder_place(option, file.parent)


def require_folder_place(option: str, folder: Path) -> None:
    """Raise ValueError where nothing can be written into a folder, or into the one that it would be made in.

    Tried with a nameless file, since rights alone do not tell of a read-only or full file system.
    """
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists() or path.is_symlink())
    if not place.is_dir():
        raise ValueError(f"{option}: found the file {place}; wanted a folder there; pass another {option}")
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise ValueError(
            f"{option}: {place} cannot be written to ({error.strerror}); wanted a folder that can; pass another one"
        ) from None


def require_other_file(option: str, file: Path, args: Namespace) -> None:
    """Raise ValueError where an output is one of the files that are read."""
    for name in READ:
        given = getattr(args, name, None) or []
        for source in given if isinstance(given, list) else [given]:
            if source.resolve() == file.resolve():
                raise ValueError(
                    f"{option}: found {file}, which {option_of(name)} reads; wanted a file of its own; "
                    f"pass another {option}"
                )


def require_one_kind(path: Path, problems: list[dict]) -> None:
    """Raise ValueError where some labels are tests of programs and others answers: one number cannot speak of both."""
    tested = [is_code_label(problem["label"]) for problem in problems]
    if any(tested) and not all(tested):
        other = problems[tested.index(not tested[0])]["id"]
        raise ValueError(
            f"{path}: found {sum(tested)} labels with tests of programs and {len(tested) - sum(tested)} without "
            f"(the first that is unlike its predecessors: {other!r}); wanted one kind; split the file"
        )


def require_agent(path: Path, problems: list[dict], agent: bool) -> None:
    """Raise ValueError where questions would be asked without the agent that searches, or others with it."""
    searched = sum(is_search_label(problem["label"]) for problem in problems)
    if searched == (len(problems) if agent else 0):
        return
    found = f"{path}: found {searched} of {len(problems)} labels of questions that are searched for"
    if 0 < searched < len(problems):
        raise ValueError(f"{found}; wanted one kind; split the file")
    if agent:
        raise ValueError(f"{found} and --agent search; wanted such questions; leave --agent out (docs/evaluation.md)")
    raise ValueError(f"{found} and no --agent; wanted the agent that searches; pass --agent search")


def require_ready(
    models: list["Model"], datasets: Iterable[Path], length: int, tensor_parallel_size: int, agent: bool = False
) -> None:
    """Refuse problem files that cannot be read, and engines that the models' configs or this machine rule out.

    Args:
        models: checked ones.
        datasets: problem files, all that will be evaluated.
        length: prompt and completion, tokens.
        tensor_parallel_size: ranks of the engine.
        agent: whether samples are conversations of a search agent.

    Raises:
        ValueError: the first one: found, wanted, repair.
    """
    import torch

    for path in datasets:
        problems = read_problems(path)
        require_one_kind(path, problems)
        require_agent(path, problems, agent)
    present = torch.cuda.device_count() if torch.cuda.is_available() else None
    if present is not None and tensor_parallel_size > present:
        raise ValueError(
            f"--tensor-parallel-size: found {tensor_parallel_size}; wanted at most the {present} GPUs here; "
            f"e.g. --tensor-parallel-size {present}"
        )
    for base in dict.fromkeys(model.base for model in models):
        config = read_config(str(base))
        positions, heads = config.get("max_position_embeddings"), config.get("num_attention_heads")
        if positions and length > positions:
            raise ValueError(
                f"{base}: found {length} tokens of prompt and completion; wanted at most its {positions} positions; "
                "pass a lower --max-tokens or --max-prompt-tokens"
            )
        if heads and heads % tensor_parallel_size:
            raise ValueError(
                f"--tensor-parallel-size: found {tensor_parallel_size}; wanted a divisor of the {heads} heads of "
                f"{base}; e.g. --tensor-parallel-size 1"
            )
