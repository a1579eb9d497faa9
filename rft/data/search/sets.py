"""The published question sets: where the hub has them, and which of the files that one has are which."""

import re
from collections.abc import Iterable
from pathlib import Path

from rft.data.sets import SUFFIXES, HubSet, Input, missing_shards

REPO = "PeterJinGo/nq_hotpotqa_train"  # Search-R1's: the training questions of two sets, the evaluated ones of seven
HUB = (HubSet("search", REPO, re.compile(r"^(train|test)[-.]")),)
TRAINED = ("nq", "hotpotqa")
EVALUATED = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
TRAIN, TEST, DEV = "train", "test", "dev"
_SPLITS = {TRAIN: r"train", TEST: r"test", DEV: r"dev|val|validation"}
_EDGE = r"(?:^|[/_. -])"


def match(given: Path) -> tuple[list[Input], list[str]]:
    """The files to make the task of, and the names of other data files there. `Input.kind` is `split/set`.

    Splits are known by a file's name (`train`, `test`, `dev`, `validation`), sets by the folder or file (`nq/…`,
    `hotpotqa_train.jsonl`), or, where no set is in the path, by the rows' `data_source`. Of a set with a test and a dev
    split the test questions are taken, as Search-R1 does; of training questions those of `TRAINED`.

    Raises:
        ValueError: no such folder, no training or evaluation file in it, or a shard of several missing.
    """
    if not given.is_dir():
        raise ValueError(f"found no folder {given}, wanted one with the downloaded question sets; correct --from")
    names = sorted(
        path.relative_to(given).as_posix()
        for path in given.rglob("*")
        if path.suffix in SUFFIXES and path.is_file() and not path.name.startswith((".", "dataset_info"))
    )
    kinds = {name: kind for name in names if (kind := kind_of(name))}
    taken = {name: kind for name, kind in kinds.items() if is_taken(kind, kinds.values())}
    splits = {split_of(kind) for kind in taken.values()}
    if TRAIN not in splits or len(splits) == 1:
        raise ValueError(
            f"{given}: found {', '.join(taken or names[:8]) or 'no data file'}; wanted .parquet, .jsonl or .json files "
            "with train, and with test, dev or validation, in their names, as Search-R1's train.parquet and "
            "test.parquet or FlashRAG's nq/train.jsonl and nq/test.jsonl; docs/data.md says where they come from"
        )
    if shards := list(missing_shards(list(taken))):
        raise ValueError(f"{given}: found no {shards[0]}, wanted all shards; download it too")
    inputs = [Input(kind, given / name, name, given.resolve().name, "") for name, kind in taken.items()]
    return inputs, [name for name in names if name not in taken]


def kind_of(name: str) -> str | None:
    """`split/set` of a path below the folder, the set "" where the path names none; None of a file without split."""
    lowered = name.lower()
    split = next((split for split, words in _SPLITS.items() if _has(lowered.rpartition("/")[2], words)), None)
    known = next((each for each in EVALUATED if _has(lowered, re.escape(each))), "")
    # A file of two sets, such as nq_hotpotqa_train.jsonl, says in its rows what each is from.
    known = "" if sum(_has(lowered, re.escape(each)) for each in EVALUATED) > 1 else known
    return f"{split}/{known}" if split else None


def split_of(kind: str) -> str:
    """ "train", "test" or "dev"."""
    return kind.partition("/")[0]


def set_of(kind: str) -> str | None:
    """The set that a file's path names, or None."""
    return kind.partition("/")[2] or None


def is_taken(kind: str, kinds: Iterable[str]) -> bool:
    """Whether a file is used beside files of these kinds."""
    split, named = split_of(kind), set_of(kind)
    if split == TRAIN:
        return named is None or named in TRAINED
    return split == TEST or f"{TEST}/{named or ''}" not in kinds


def of_hub(inputs: Iterable[Input]) -> list[Input]:
    """The hub's files with their kinds: they name a split and no set."""
    return [each._replace(kind=f"{TRAIN if each.name.startswith(TRAIN) else TEST}/") for each in inputs]


def _has(text: str, words: str) -> bool:
    return re.search(rf"{_EDGE}(?:{words})(?=$|[/_. -])", text) is not None
