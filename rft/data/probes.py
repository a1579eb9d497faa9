"""Held-out problem sets: an in-distribution probe, nested out-of-distribution probes, and AIME."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from rft import __version__
from rft.data.canonical import canonical_words_text, content_hash, priority
from rft.data.check import is_gradable
from rft.data.curriculum import read_dataset
from rft.data.decontaminate import EvalIndex, build_index, find_match
from rft.data.published import Problem, read_published
from rft.data.row_files import input_identity, outdated_files, write_rows, written_together
from rft.problems import problem_row, problem_text

ID_SIZE, OOD_SIZES = 200, (200, 1000)
MATH_SHARE = 0.85  # of the OOD probes: 170 of 202, as in docs/sources.md
MIN_LEVEL = 4  # of MATH's 1 to 5
HELD_OUT_YEAR = 2024  # AIMEs of this year and later are the held-out set, and in no probe
# Each kind has its own: the documented order makes the OOD probes before there is a pool, into one directory.
MANIFEST, ID_MANIFEST = "probe_manifest.json", "probe_id_manifest.json"
EXTERNAL = re.compile(r"aime_eval\.jsonl|probe_set_[0-9]+_ood\.jsonl")


def make_probe_sets(sources: list[Path], pool: Path | None, exclude: list[Path], seed: int, out: Path) -> dict:
    """Write the probes that the given files allow, and a manifest of each kind.

    Args:
        sources: published files (MATH, GSM8K, AIME, …; see `read_published`) for `aime_eval.jsonl` and
            `probe_set_<n>_ood.jsonl`.
        pool: an RL pool, JSONL, for `probe_set_200.jsonl`.
        exclude: problem files whose problems the ID probe must not hold: the part of the pool that will be trained on.
        seed: of the samples. A set of 200 is part of the set of 1,000.
        out: directory of the files.

    Returns:
        `dropped` and `files` of the manifests.

    Raises:
        ValueError: bad input, or too few problems. Nothing in `out` has changed then.
    """
    if not sources and not pool:
        raise ValueError("found neither sources nor a pool, wanted at least one; pass --source FILE or --pool FILE")
    kinds, outdated, dropped = {}, [], Counter()
    if sources:
        sets, dropped = external_sets([p for path in sources for p in read_published(path)], seed)
        outdated = outdated_files(out, MANIFEST, EXTERNAL, sets)
        bounds = {"math_share": MATH_SHARE, "min_level": MIN_LEVEL, "aime_from": HELD_OUT_YEAR}
        kinds[MANIFEST] = (sets, {"seed": seed, **bounds}, sources, dropped)
    if pool:
        sets = {f"probe_set_{ID_SIZE}.jsonl": id_probe(pool, exclude, seed)}
        kinds[ID_MANIFEST] = (sets, {"seed": seed}, [pool, *exclude], Counter())
    files = {}
    with written_together(out, [*(name for kind in kinds.values() for name in kind[0]), *kinds], outdated) as paths:
        for manifest, (sets, settings, inputs, drops) in kinds.items():
            entries = {name: set_entry(paths[name], rows) for name, rows in sets.items()}
            document = {
                "settings": settings,
                "versions": {"rft": __version__},
                "sources": [input_identity(path) for path in inputs],
                "dropped": dict(sorted(drops.items())),
                "files": entries,
            }
            paths[manifest].write_text(json.dumps(document, indent=1) + "\n")
            files |= entries
    return {"dropped": dict(sorted(dropped.items())), "files": files}


def set_entry(path: Path, rows: list[dict]) -> dict:
    """Write a set; return its entry in the manifest, with its problems by datasource."""
    return {**write_rows(path, rows), "datasources": dict(Counter(row["datasource"] for row in rows))}


def external_sets(problems: list[Problem], seed: int) -> tuple[dict[str, list[dict]], Counter]:
    """`aime_eval.jsonl` and the OOD probes by name, and what was dropped by reason."""
    usable, dropped = usable_problems(problems)
    held_out = sorted(filter(is_held_out, usable), key=aime_order)
    index = build_index(held_out)
    others, math = defaultdict(list), []
    for problem in sorted(usable, key=lambda p: priority(seed, p.id)):
        if is_held_out(problem):
            continue
        if copies(problem, index):
            dropped["copy of a held-out AIME problem"] += 1
        elif problem.datasource != "math":
            others[problem.datasource].append(problem)
        elif (problem.level or 0) >= MIN_LEVEL:
            math.append(problem)
        else:
            dropped[f"MATH below level {MIN_LEVEL}"] += 1
    math.sort(key=lambda p: not p.id.startswith("math/test/"))  # stable: MATH's own test problems come first
    mixed = interleave(math, round_robin(others))
    if len(mixed) < max(OOD_SIZES):
        raise ValueError(
            f"found {len(math)} MATH problems of level {MIN_LEVEL}-5 and {sum(map(len, others.values()))} others, "
            f"enough for an OOD probe of {len(mixed)}; wanted {max(OOD_SIZES)}; pass more files with --source"
        )
    sets = {"aime_eval.jsonl": held_out} if held_out else {}
    sets |= {f"probe_set_{size}_ood.jsonl": mixed[:size] for size in OOD_SIZES}
    return {name: [problem_row(p.text, p.label, p.id, p.datasource) for p in ps] for name, ps in sets.items()}, dropped


def usable_problems(problems: Iterable[Problem]) -> tuple[list[Problem], Counter]:
    """Problems with a label that the grader can grade, one for each canonical text; and drops by reason.

    MATH and AIME have problems in common. Which of the copies stays does not depend on the order of the files.
    """
    kept, dropped = {}, Counter()
    for problem in sorted(problems, key=precedence):
        key = content_hash(problem.text)
        if problem.label is None:
            dropped["no answer"] += 1
        elif not is_gradable(problem.label):
            dropped["answer that cannot be graded"] += 1
        elif key in kept:
            dropped["copy"] += 1
        else:
            kept[key] = problem
    seen = Counter(p.id for p in kept.values())
    twice = [name for name, count in seen.items() if count > 1]
    if twice:
        raise ValueError(
            f"found id {twice[0]!r} for two different problems, wanted unique ids; correct one of the source files"
        )
    return list(kept.values()), dropped


def precedence(problem: Problem) -> tuple:
    """Sort key: held-out problems, then MATH's test problems, other AIMEs, the rest; each by id."""
    if is_held_out(problem):
        return 0, problem.id
    return (1 if problem.id.startswith("math/test/") else 2 if problem.year else 3), problem.id


def is_held_out(problem: Problem) -> bool:
    return problem.year is not None and problem.year >= HELD_OUT_YEAR


def aime_order(problem: Problem) -> tuple[int, ...]:
    """Year, contest and number of an AIME problem, from its id."""
    return tuple(int(part) for part in problem.id.removeprefix("aime/").split("-"))


def copies(problem: Problem, index: EvalIndex) -> bool:
    text = canonical_words_text(problem.text)
    return find_match(problem.text, text, content_hash(problem.text), problem.label, index) is not None


def round_robin(groups: dict[str, list[Problem]]) -> list[Problem]:
    """Problems of each group in turn, groups by name, so that any beginning holds equally many of each."""
    ranked = [(place, name, p) for name, ps in groups.items() for place, p in enumerate(ps)]
    return [p for _, _, p in sorted(ranked, key=lambda r: r[:2])]


def interleave(math: list[Problem], others: list[Problem]) -> list[Problem]:
    """`MATH_SHARE` of any beginning from `math`, the rest from `others`, up to the largest size of a probe."""
    mixed, taken = [], 0
    for size in range(1, max(OOD_SIZES) + 1):
        from_math = int(size * MATH_SHARE + 1e-9) > taken
        source, place = (math, taken) if from_math else (others, size - 1 - taken)
        if place >= len(source):
            break
        mixed.append(source[place])
        taken += from_math
    return mixed


def id_probe(pool: Path, exclude: list[Path], seed: int) -> list[dict]:
    """`ID_SIZE` rows of the pool, by seed, none of them a problem of `exclude`."""
    barred = {content_hash(p.text) for path in exclude for p in read_published(path)}
    free = [row for row in read_dataset(pool) if content_hash(problem_text(row)) not in barred]
    if len(free) < ID_SIZE:
        raise ValueError(
            f"{pool}: found {len(free)} problems outside of --exclude, wanted {ID_SIZE} for the ID probe; "
            "make a larger pool: .venv/bin/python data/prepare_sft_data.py --rl-pool-size N"
        )
    return sorted(free, key=lambda row: priority(seed, row["id"]))[:ID_SIZE]
