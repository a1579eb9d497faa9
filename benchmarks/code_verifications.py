"""How many programs does the code server judge a second, and what of that is the start of sandboxes?

    .venv/bin/python -m benchmarks.code_verifications --out DIR [--level landlock] [--programs 64]     CPU, a minute

Programs as MBPP's are: a small function and three asserts of a literal, and for one in a hundred a test that needs a
judge. `start-up` takes sandboxes from the pool and gives them back unused; `one at a time` and `slots` verify in this
process; `served` asks a server over HTTP, 128 requests at once. CPU seconds are those of all processes.
"""

import argparse
import asyncio
import json
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks import ROOT, report
from rft.code.judge import verify
from rft.code.sandbox import Pool
from rft.code.solution import started
from rft.code_server.client import Client

NAME = "code_verifications"
AT_ONCE = 128
SLOTS = 12
# name of the function, its source, and its tests: arguments, and the value as an expression of them
KINDS = [
    ("total", "def total(values):\n    return sum(v * v for v in values)", "[1, 2, {n}]", lambda n: 5 + n * n),
    ("digits", "def digits(n):\n    return sum(int(d) for d in str(n))", "{n}", lambda n: sum(map(int, str(n)))),
    ("joined", "def joined(a, b):\n    return a + '-' + b", "'x{n}', 'y'", lambda n: f"x{n}-y"),
    ("ordered", "def ordered(values):\n    return sorted(set(values))", "[{n}, 0, {n}]", lambda n: sorted({0, n})),
    (
        "prime",
        "import math\ndef prime(n):\n    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))",
        "{n}",
        lambda n: n > 1 and all(n % d for d in range(2, n)),
    ),
    (
        "found",
        "import re\ndef found(text):\n    return re.findall(r'[0-9]+', text)",
        "'a{n}b7'",
        lambda n: [str(n), "7"],
    ),
    (
        "counts",
        "from collections import Counter\ndef counts(word):\n    return dict(Counter(word))",
        "'aab'",
        lambda n: {"a": 2, "b": 1},
    ),
    ("pairs", "def pairs(a, b):\n    return list(zip(a, b))", "[1, {n}], (2, 3)", lambda n: [(1, 2), (n, 3)]),
]


def programs(count: int) -> list[tuple[str, list[str]]]:
    """Programs and their tests; none is like another."""
    made = []
    for number in range(count):
        name, source, arguments, value = KINDS[number % len(KINDS)]
        values = [number + k for k in range(3)]
        tests = [f"assert {name}({arguments.replace('{n}', str(n))}) == {value(n)!r}" for n in values]
        if number % 100 == 99:
            tests[2] = f"value = {name}({arguments.replace('{n}', str(number))})\nassert value == {value(number)!r}"
        made.append((f"# {number}\n{source}\n", tests))
    return made


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


async def timed(work: list[Callable[[], Awaitable]], at_once: int) -> dict:
    """Run all, some at once: seconds, CPU seconds a piece, and the latencies."""
    turn, latencies = asyncio.Semaphore(at_once), []

    async def one(each: Callable[[], Awaitable]) -> None:
        async with turn:
            begin = time.monotonic()
            await each()
            latencies.append(time.monotonic() - begin)

    begin, cpu = time.monotonic(), cpu_seconds()
    await asyncio.gather(*map(one, work))
    seconds = time.monotonic() - begin
    ordered = sorted(latencies)
    return {
        "count": len(work),
        "at_once": at_once,
        "seconds": seconds,
        "per_second": len(work) / seconds,
        "cpu_ms_each": 1000 * (cpu_seconds() - cpu) / len(work),
        "p50_seconds": statistics.median(ordered),
        "p99_seconds": ordered[int(0.99 * (len(ordered) - 1))],
    }


async def in_process(record: dict, made: list, level: str | None, publish: Callable[[], None]) -> None:
    """Start-up alone, then verifications, by a pool of this process."""

    async def start_only() -> None:
        await (await started(pool, "solution")).close()

    def verification(program: str, tests: list[str]) -> Callable[[], Awaitable]:
        async def work() -> None:
            found = await verify(pool, program, tests)
            if found.results != [1] * len(tests):
                raise RuntimeError(f"found {found.causes}, wanted {len(tests)} passed: {program}")

        return work

    async with Pool(SLOTS, level) as pool:
        record["settings"]["level"] = pool.level
        await start_only()
        work = [verification(*each) for each in made]
        with report.part(record, "start-up", publish) as found:
            found |= await timed([start_only] * len(made), 1)
        with report.part(record, "one at a time", publish) as found:
            found |= await timed(work, 1)
        with report.part(record, f"{SLOTS} slots", publish) as found:
            found |= await timed(work, SLOTS)


async def served(record: dict, made: list, level: str, publish: Callable[[], None]) -> None:
    """The same over HTTP, by a server of its own."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "rft.code_server", "--port", str(port), "--isolation", level]
    server = subprocess.Popen(command, cwd=ROOT)
    try:
        async with Client(f"http://127.0.0.1:{port}") as client:

            def request(program: str, tests: list[str]) -> Callable[[], Awaitable]:
                async def work() -> None:
                    answer = await client.test_program(program, tests)
                    if answer.results != [1] * len(tests):
                        raise RuntimeError(f"found {answer.causes}, wanted {len(tests)} passed: {program}")

                return work

            work = [request(*each) for each in made]
            await work[0]()  # it has started
            with report.part(record, "served", publish) as found:
                found |= await timed(work, AT_ONCE)
                found["cpu_ms_each"] = None  # the server's, which has not ended
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def body(record: dict) -> str:
    """The table and the ratios."""
    parts = {name: found for name, found in record["parts"].items() if "per_second" in found}
    columns = ("count", "at_once", "per_second", "cpu_ms_each", "p50_seconds", "p99_seconds")
    rows = [(name, *(found[column] for column in columns)) for name, found in parts.items()]
    text = [
        f"Level {record['settings']['level']}, {record['settings']['cores']} cores.",
        report.markdown(("part", *columns), rows),
    ]
    if {"start-up", "one at a time"} <= set(parts):
        share = parts["start-up"]["cpu_ms_each"] / parts["one at a time"]["cpu_ms_each"]
        text.append(f"Start-up is {share:.0%} of the CPU time of a verification.")
    return "\n\n".join(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument(
        "--level", choices=("namespaces", "landlock"), help="default: the best that this machine can do"
    )
    parser.add_argument("--programs", type=int, default=256, help="how many are verified in each part")
    args = parser.parse_args()
    # In another process: it loads torch, and a start costs a large process more than a small one such as the server.
    describe = "import json; from benchmarks import report; print(json.dumps(report.describe()))"
    described = subprocess.run([sys.executable, "-c", describe], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    record = json.loads(described.stdout)
    record["settings"] = {"cores": len(os.sched_getaffinity(0)), "slots": SLOTS, "level": args.level}

    def publish() -> None:
        report.save(args.out.resolve(), NAME, record, body(record))

    made = programs(args.programs)
    asyncio.run(in_process(record, made, args.level, publish))
    asyncio.run(served(record, made, record["settings"]["level"], publish))
    print(body(record))
    return report.exit_code(record)


if __name__ == "__main__":
    sys.exit(main())
