"""NuminaMath-1.5 to training sets: one streamed pass through the filters, a sample by seed, disjoint files."""

import argparse
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rft import __version__
from rft.data.canonical import canonical_text, canonical_words_text, content_hash, hash_text, integer_label, priority
from rft.data.decontaminate import EvalIndex, find_match
from rft.data.numina import read_numina
from rft.data.published import read_published
from rft.data.row_files import input_identity, outdated_files, read_rows, require_apart, write_rows, written_together
from rft.data.stages import length_fault, row_fault, stage_table, worked_solution
from rft.problems import problem_row, problem_text

from . import decontaminate

MANIFEST = "sft_manifest.json"
OWN = re.compile(r"sft_(train|dev|rl_pool(_[0-9]+)?)\.jsonl")
SUBSET = re.compile(r"sft_rl_pool_[0-9]+\.jsonl")


class Sizes(NamedTuple):
    """Problems in each file."""

    train: int  # sft_train.jsonl
    dev: int  # sft_dev.jsonl
    rl_pool: int  # sft_rl_pool.jsonl
    subset: int  # sft_rl_pool_<subset>.jsonl, the first of the pool


class Candidate(NamedTuple):
    """A row that passed the filters; its text waits in the spool."""

    priority: bytes
    hash: str
    offset: int
    for_sft: bool


def prepare(
    source: str | list[Path], revision: str | None, eval_files: list[Path], sizes: Sizes, seed: int, out: Path
) -> dict:
    """Write `sft_train.jsonl`, `sft_dev.jsonl`, `sft_rl_pool.jsonl`, its subset and the manifest into `out`.

    Equal rows, in whatever file format, give equal bytes: a problem's place depends on the seed and its own text.
    Memory stays below 1 GB at 900,000 rows; candidates wait in a temporary file in `out` (about 0.5 GB there).

    Files of an earlier run in `out` that this one does not write (a subset of another size) are removed with it.

    Returns:
        The manifest.

    Raises:
        ValueError: bad input, fewer problems than asked for, or in `out` a file of our names that no manifest describes
            and that could overlap. Nothing in `out` has changed then.
        OSError: an input cannot be read, or the disk is full. Nothing in `out` has changed then.
    """
    require_sizes(sizes)
    outdated = outdated_files(out, MANIFEST, OWN, file_names(sizes))
    sources = source if isinstance(source, list) else [Path(source)]
    require_apart([out / name for name in (*file_names(sizes), *outdated, MANIFEST)], [*sources, *eval_files])
    evaluations = {path: read_published(path) for path in eval_files}
    index = decontaminate.build_index(p for problems in evaluations.values() for p in problems)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=out, prefix=".candidates.") as spool:
        candidates, rows, dropped, rejected = filter_rows(read_numina(source, revision), index, seed, spool)
        stages = stage_table(rows, dropped)
        manifest = {
            "source": source_identity(source, revision),
            "settings": {**sizes._asdict(), "seed": seed},
            "versions": {"rft": __version__, "datasketch": version("datasketch")},
            "stages": stages,
            "decontamination": {
                "settings": decontaminate.settings(),
                "eval_sets": [{**input_identity(path), "problems": len(ps)} for path, ps in evaluations.items()],
                "rejected": rejected,
            },
        }
        eval_hashes = {content_hash(p.text) for p in index.problems}
        return write(select(candidates, sizes, stages), spool, out, eval_hashes, manifest, outdated)


def add_sizes(parser: argparse._ActionsContainer) -> None:
    """Options of `Sizes`, for `sizes_of`, and `--seed`."""
    parser.add_argument("--sft-size", type=int, default=5000, help="problems in sft_train.jsonl")
    parser.add_argument("--dev-size", type=int, default=500, help="problems in sft_dev.jsonl")
    parser.add_argument("--rl-pool-size", type=int, default=50000, help="problems in sft_rl_pool.jsonl")
    parser.add_argument("--subset-size", type=int, default=400, help="first problems of the pool, for A/B runs")
    parser.add_argument("--seed", type=int, default=42)


def sizes_of(args: argparse.Namespace) -> Sizes:
    return Sizes(args.sft_size, args.dev_size, args.rl_pool_size, args.subset_size)


def require_sizes(sizes: Sizes) -> None:
    if min(sizes) < 0 or not sizes.train + sizes.rl_pool:
        raise ValueError(f"found sizes {sizes._asdict()}, wanted none below 0, and some to train on; correct the sizes")
    if sizes.subset > sizes.rl_pool:
        raise ValueError(
            f"found --subset-size {sizes.subset} above --rl-pool-size {sizes.rl_pool}, wanted it within; "
            f"pass --subset-size {sizes.rl_pool} or less"
        )


def filter_rows(
    rows: Iterable[dict], index: EvalIndex, seed: int, spool: BinaryIO
) -> tuple[list[Candidate], int, Counter, list[dict]]:
    """Candidates (written to `spool`, a JSON line each), rows read, drops by (stage, reason), contaminated rows."""
    candidates, dropped, rejected, labels, number = [], Counter(), [], {}, 0
    conflicts, offset = set(), 0
    for number, row in enumerate(rows, 1):
        fault = row_fault(row)
        if fault:
            dropped[fault] += 1
            continue
        label, words_text = integer_label(row["answer"]), canonical_words_text(row["problem"])
        key = hash_text(canonical_text(words_text))
        if key in labels:
            dropped["unique", "copy of an earlier problem"] += 1
            if labels[key] != label:
                conflicts.add(key)
            continue
        labels[key] = label
        fault = length_fault(row)
        if fault:
            dropped[fault] += 1
            continue
        match = find_match(row["problem"], words_text, key, label, index)
        if match:
            dropped["decontaminated", match.reason] += 1
            rejected.append({"id": f"numina/{key}", "row": number, **match._asdict()})
            continue
        solution = worked_solution(row["solution"], label)
        line = [row["problem"].strip(), label, key, row["source"] or "unknown", solution]
        text = json.dumps(line).encode() + b"\n"
        spool.write(text)
        candidates.append(Candidate(priority(seed, key), key, offset, solution is not None))
        offset += len(text)
    kept = [c for c in candidates if c.hash not in conflicts]
    dropped["one_answer", "copies state different answers"] += len(candidates) - len(kept)
    return kept, number, +dropped, rejected


def select(candidates: list[Candidate], sizes: Sizes, stages: list[dict]) -> dict[str, list[Candidate]]:
    """Disjoint samples by ascending priority: for SFT among those with a solution to imitate, then for RL.

    Raises:
        ValueError: there are fewer candidates than asked for; it names the counts after each stage.
    """
    ranked = sorted(candidates)
    worked = [c for c in ranked if c.for_sft][: sizes.train + sizes.dev]
    taken = {c.hash for c in worked}
    pool = [c for c in ranked if c.hash not in taken][: sizes.rl_pool]
    if len(worked) < sizes.train + sizes.dev or len(pool) < sizes.rl_pool:
        left = ", ".join(f"{s['stage']} {s['remaining']:,}" for s in stages)
        raise ValueError(
            f"found {len(ranked):,} problems, {sum(c.for_sft for c in ranked):,} of them with a boxed solution "
            f"(left after each stage: {left}); wanted {sizes.train + sizes.dev:,} with a boxed solution for SFT and "
            f"{sizes.rl_pool:,} more; pass smaller --sft-size, --dev-size or --rl-pool-size, or more rows"
        )
    splits = (worked[: sizes.train], worked[sizes.train :], pool, pool[: sizes.subset])
    return dict(zip(file_names(sizes), filter(None, splits), strict=True))


def file_names(sizes: Sizes) -> list[str]:
    """Names of the files that hold any problem: train, dev, pool, subset."""
    names = ("sft_train.jsonl", "sft_dev.jsonl", "sft_rl_pool.jsonl", f"sft_rl_pool_{sizes.subset}.jsonl")
    return [name for name, size in zip(names, sizes, strict=True) if size]


def write(
    splits: dict[str, list[Candidate]],
    spool: BinaryIO,
    out: Path,
    eval_hashes: set[str],
    manifest: dict,
    outdated: list[str],
) -> dict:
    """Write the files, read them back, prove that no problem is in two, and write the manifest: all or nothing."""
    with written_together(out, [*splits, MANIFEST], outdated) as paths:
        files = {name: write_rows(paths[name], split_rows(spool, split, name)) for name, split in splits.items()}
        hashes = {name: hashes_of(paths[name]) for name in splits if not SUBSET.fullmatch(name)}
        manifest |= {"files": files, "overlap": overlaps(hashes | {"evaluation sets": eval_hashes})}
        paths[MANIFEST].write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def split_rows(spool: BinaryIO, split: list[Candidate], name: str) -> Iterator[dict]:
    """Rows of one file, in the order of `split`; an SFT row has the assistant's message too, the
    solution as its reasoning and the answer alone as its content.
    """
    for candidate in split:
        spool.seek(candidate.offset)
        text, label, key, source, solution = json.loads(spool.readline())
        row = problem_row(text, label, f"numina/{key}", source)
        if not name.startswith("sft_rl_pool"):
            row["output"] = [{"role": "assistant", "thinking": solution, "content": f"\\boxed{{{label}}}"}]
        yield row


def hashes_of(path: Path) -> set[str]:
    """The hash of each problem in a file that was written; ValueError where one occurs twice."""
    seen = set()
    for number, row in read_rows(path):
        key = content_hash(problem_text(row))
        if key in seen:
            raise ValueError(f"{path}, line {number}: found a problem twice, wanted it once; report this as a bug")
        seen.add(key)
    return seen


def overlaps(hashes: dict[str, set[str]]) -> dict[str, int]:
    """Problems in common for each pair of sets. Raises ValueError unless all are 0."""
    names = list(hashes)
    counts = {f"{a} & {b}": len(hashes[a] & hashes[b]) for i, a in enumerate(names) for b in names[i + 1 :]}
    if any(counts.values()):
        raise ValueError(f"found problems in two sets: {counts}, wanted none; report this as a bug")
    return counts


def source_identity(source: str | list[Path], revision: str | None) -> dict:
    """What was read: name and content hash, of each of several files, or the hub's name and revision."""
    if isinstance(source, list):
        return {"files": [input_identity(path) for path in source]}
    return input_identity(Path(source)) if os.path.exists(source) else {"name": source, "revision": revision or "main"}
