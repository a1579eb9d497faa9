#!/usr/bin/env python3
"""Write rows with NuminaMath-1.5's schema and proportions, to measure data/prepare_sft_data.py at full size.

    .venv/bin/python benchmarks/numina_rows.py --rows 900000 --out numina.parquet [--plant EVAL_FILE] [--seed 0]

Made-up text, deterministic by seed: question types, sources, validity and the shares that each filter drops follow the
published counts; about 250 characters a problem and 1,300 a solution. --plant puts problems of an evaluation file
among the rows, in turn verbatim, retyped, embedded in other text, and with one word changed. A minute; 1.2 GB as JSONL.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rft.data.published import read_published
from rft.data.row_files import command, written_together

TEXT = ("problem", "solution", "answer", "problem_type", "question_type")
SCHEMA = pa.schema(
    [(name, pa.string()) for name in (*TEXT, "problem_is_valid", "solution_is_valid", "source")]
    + [("synthetic", pa.bool_())]
)
BATCH = 5000
TYPES = {"math-word-problem": 631, "MCQ": 140, "proof": 110, "other": 15}
SOURCES = {"olympiads": 200, "cn_k12": 270, "cn_contest": 30, "aops_forum": 70, "amc_aime": 5, "orca_math": 150,
           "synthetic_math": 150, "metamath": 10, "inequalities": 7, "number_theory": 4}  # fmt: skip
KINDS = ("Algebra", "Geometry", "Number Theory", "Combinatorics", "Calculus", "Inequalities", "Logic and Puzzles")
SYLLABLES = [a + b for a in (*"bdfgklmnprstvz", "br", "tr", "st") for b in (*"aeiou", "an", "er", "ol", "it")]
OTHER_ANSWERS = (
    "\\frac{{{}}}{{7}}",
    "{} \\text{{ cm}}",
    "x = {}",
    "proof",
    "notfound",
    "{}.5",
    "({}, 3)",
    "\\sqrt{{{}}}",
)


def make_row(rng: random.Random, vocabulary: list[str], problem: str | None = None, label: str | None = None) -> dict:
    """One row; `problem` and `label` replace the made-up ones, and then the row passes every filter but the last."""
    planted = problem is not None
    number = str(rng.randrange(2, 10_000)) if label is None else label
    question = "math-word-problem" if planted else pick(rng, TYPES)
    answer = number if planted or rng.random() < 0.46 else rng.choice(OTHER_ANSWERS).format(number)
    last = f"the result is $\\boxed{{{answer}}}$." if planted or rng.random() < 0.7 else f"we obtain {answer}."
    return {
        "problem": problem if planted else f"{prose(rng, vocabulary, 42)} Find the value of $n$.",
        "solution": f"{prose(rng, vocabulary, 200)} Hence {last}",
        "answer": answer,
        "problem_type": rng.choice(KINDS),
        "question_type": question,
        "problem_is_valid": "Yes" if planted or rng.random() < 0.97 else rng.choice(["Incomplete", "No", None]),
        "solution_is_valid": "Yes" if planted or rng.random() < 0.98 else rng.choice(["No", "Problem not solved"]),
        "source": "olympiads" if planted else pick(rng, SOURCES),
        "synthetic": False,
    }


def pick(rng: random.Random, weights: dict[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def prose(rng: random.Random, vocabulary: list[str], length: int) -> str:
    """About `length` words, common ones more often, with numbers and formulas among them."""
    size = len(vocabulary)
    listed = [vocabulary[int(size * rng.random() ** 3)] for _ in range(rng.randint(length // 2, length * 3 // 2))]
    for i in range(3, len(listed), 9):
        listed[i] = f"${rng.randrange(100)}x^{rng.randrange(9)} + {rng.randrange(1000)}$"
    return " ".join(listed).capitalize() + "."


def disguise(rng: random.Random, text: str, way: int) -> str:
    """A copy of a problem: 0 verbatim, 1 retyped, 2 embedded in other text, 3 with one word changed."""
    if way == 1:
        return text.replace("$", " $ ").upper().replace("\\FRAC", "\\dfrac")
    if way == 2:
        return f"Tom found this in an old book and asks for your help. {text} Write down each step."
    if way == 3:
        listed = text.split(" ")
        listed[rng.randrange(len(listed))] = "qux"
        return " ".join(listed)
    return text


def make_rows(count: int, seed: int, plants: list[tuple[str, str]]) -> Iterator[dict]:
    """`count` rows, the planted ones evenly among them; one in twelve of the others repeats an earlier problem."""
    rng = random.Random(seed)
    vocabulary = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(4000)]
    every = max(1, count // (len(plants) + 1))
    recent, left = [], iter(enumerate(plants))
    for number in range(count):
        way, plant = next(left, (0, None)) if number % every == every - 1 else (0, None)
        if plant:
            yield make_row(rng, vocabulary, disguise(rng, plant[0], way % 4), plant[1])
        elif recent and rng.random() < 1 / 12:
            yield rng.choice(recent)
        else:
            row = make_row(rng, vocabulary)
            recent = [*recent[-50:], row]
            yield row


def write_table(rows: Iterator[dict], path: Path, suffix: str) -> None:
    """Rows as Parquet, as an Arrow stream (what `datasets` writes), or as JSON lines, by `suffix`."""
    if suffix == ".jsonl":
        with path.open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows)
        return
    with pq.ParquetWriter(path, SCHEMA) if suffix == ".parquet" else pa.ipc.new_stream(path, SCHEMA) as writer:
        while batch := list(islice(rows, BATCH)):
            writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=SCHEMA))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=900_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plant", type=Path, action="append", default=[], metavar="EVAL_FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.parquet|.jsonl|.arrow")
    return command("numina_rows", lambda: run(parser.parse_args()))


def run(args: argparse.Namespace) -> None:
    if args.out.suffix not in (".parquet", ".jsonl", ".arrow"):
        raise ValueError(f"found --out {args.out}, wanted a name that ends in .parquet, .jsonl or .arrow; rename it")
    known = [p for path in args.plant for p in read_published(path)]
    plants = [(p.text, p.label) for p in known if p.label and p.label.lstrip("-").isdecimal()]
    with written_together(args.out.parent, [args.out.name]) as paths:
        write_table(make_rows(args.rows, args.seed, plants), paths[args.out.name], args.out.suffix)
    print(f"{args.out}: {args.rows:,} rows, {len(plants):,} of them planted")


if __name__ == "__main__":
    sys.exit(main())
