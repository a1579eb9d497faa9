"""Find the published sets among files that were downloaded elsewhere."""

import re
from pathlib import Path

from rft.data.sets import KINDS, SUFFIXES, TRAINING, Input, missing_shards

# Searched in a file's path below the folder, in lower case; the first that fits, so MATH, which is in many names, last.
NAMES = {
    TRAINING: re.compile("numina"),
    "gsm8k": re.compile("gsm8k"),
    "aime": re.compile("aime"),
    "math": re.compile(r"(^|[/_. -])math([/_. -]|$)|hendrycks_math|competition_math|math-?500"),
}


def match(directory: Path) -> tuple[list[Input], list[str]]:
    """The files of the published sets below a folder, and the names of other data files there.

    Folders and files are known by name, as the hub's mirrors have them (`openai/gsm8k/main/test-….parquet`,
    `MATH-500/test.jsonl`, `aime_2024.json`). Of GSM8K the test problems are taken where there are any.

    Raises:
        ValueError: no such folder, a kind without file, or a shard of several missing; it lists what was found.
    """
    if not directory.is_dir():
        raise ValueError(f"found no folder {directory}, wanted one with the downloaded sets; correct --from")
    names = sorted(
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.suffix in SUFFIXES and path.is_file() and not path.name.startswith((".", "dataset_info"))
    )
    kinds = {name: next((kind for kind, known in NAMES.items() if known.search(name.lower())), None) for name in names}
    tests = [name for name in names if kinds[name] == "gsm8k" and "test" in name and "socratic" not in name]
    taken = {name: kind for name, kind in kinds.items() if kind and (kind != "gsm8k" or not tests or name in tests)}
    missing = [kind for kind in KINDS if kind not in taken.values()]
    if missing:
        listed = "; ".join(f"{kind}: {', '.join(n for n in taken if taken[n] == kind) or 'none'}" for kind in KINDS)
        raise ValueError(
            f"{directory}: found {listed}; wanted a .parquet, .jsonl or .json file of each, known by these words in "
            f"its path (MATH by 'math'); put {' and '.join(missing)} there (docs/data.md says where they come from)"
        )
    if shards := list(missing_shards(list(taken))):
        raise ValueError(f"{directory}: found no {shards[0]}, wanted all shards; download it too")
    if lists := [n for n, kind in taken.items() if kind == TRAINING and n.endswith(".json")]:
        raise ValueError(f"{directory}: found {lists[0]}, wanted NuminaMath as .parquet or .jsonl; convert it")
    inputs = [Input(kind, directory / name, name, directory.resolve().name, "") for name, kind in taken.items()]
    return inputs, [name for name in names if name not in taken]
