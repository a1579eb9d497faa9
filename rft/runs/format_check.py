"""Does a model box its answers often enough for GRPO, or does it need SFT first? A few problems, greedy.

    .venv/bin/python -m rft.runs.format_check --model DIR [--data FILE] [--n 20] [--json]

By default MATH problems of level 4 and 5 (those of probe_set_1000_ood.jsonl in DATA_ROOT, also where --data names that
file), reasoning effort medium, at most 8,192 tokens an answer. The rule: SFT only where fewer than 95% of the answers
have a \\boxed{} in their final message, where the reward reads it. The rate's 95% Wilson interval decides, so that
chance does not: 20 problems say "SFT first" or leave the question open, and then it says how many would answer it if
the rate stays: 73 where every answer has its box. --cache keeps samples, so that more problems draw only the rest.

Exit status: 0 go to GRPO, 1 SFT first, 3 undecided, 2 bad use or bad input.
"""

import argparse
import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rft.code.labels import is_code_label
from rft.evals import cli
from rft.evals.settings import Settings
from rft.grading import final_message
from rft.grading.short_answer import is_search_label
from rft.problems import read_problems
from rft.record.files import replace_json
from rft.stats import wilson_interval

THRESHOLD = 0.95  # of boxed answers; docs/sources.md
PROBLEMS = "probe_set_1000_ood.jsonl"  # in DATA_ROOT; its MATH problems are of level 4 and 5
MOST = 100_000  # problems; where these would not decide, the rate is the threshold
GO, SFT, UNDECIDED = "go to GRPO", "SFT first", "undecided"
STATUS = {GO: 0, SFT: 1, UNDECIDED: 3}
THOUGHT = re.compile(r"<\|channel\|>analysis<\|message\|>\s*[^\s<]|<think>\s*[^\s<]")
NAMES = {
    "boxed": "answers with \\boxed{}",
    "final": "final messages, closed",
    "reasoning": "answers with reasoning",
    "truncated": "cut at the length limit",
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m rft.runs.format_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, type=Path, metavar="DIR", help="a checkpoint, or an adapter")
    parser.add_argument("--data", type=Path, metavar="FILE.jsonl", help="any problems instead of MATH's")
    parser.add_argument("--n", type=int, default=20, help="problems, drawn with --seed; more keep the former ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=8192, help="completion length limit")
    parser.add_argument("--max-prompt-tokens", type=int, default=1024)
    parser.add_argument(
        "--reasoning-effort", choices=("low", "medium", "high", "own"), default="medium", help="own: the template's"
    )
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep samples here")
    parser.add_argument("--base", type=Path, metavar="DIR", help="base of the adapter, where it has moved")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="write the result with every answer here")
    cli.add_trust_option(parser)
    return cli.guarded("format_check", run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> int:
    from rft.evals.models import checked
    from rft.evals.refusals import require_ready
    from rft.evals.run import evaluate

    if args.n < 1:
        raise ValueError(f"--n: found {args.n}; wanted 1 or more; e.g. --n 20")
    models = checked([(args.model.name or str(args.model), args.model)], args.base)
    settings = Settings(
        max_tokens=args.max_tokens,
        max_prompt_tokens=args.max_prompt_tokens,
        reasoning_effort=None if args.reasoning_effort == "own" else args.reasoning_effort,
        cache=args.cache,
        reference=None,  # no number of an adapter is taken from here
        tensor_parallel_size=args.tensor_parallel_size,
    )
    problems = chosen(args.data, args.n, args.seed)
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "problems.jsonl")
        file.write_text("".join(json.dumps(problem) + "\n" for problem in problems), encoding="utf-8")
        require_ready(models, [file], settings.max_length, args.tensor_parallel_size)
        with _engine_on_stderr():
            (result,) = evaluate(models, [file], settings)
    found = judged(result["records"]) | {
        "model": str(args.model),
        "data": str(args.data or default_data()),
        "seed": args.seed,
        "reasoning_effort": args.reasoning_effort,
        "max_tokens": args.max_tokens,
        "accuracy": result[settings.mode],
        "first_prompt": result["first_prompt"],
        "weights": result["weights"],
        "tree_id": result["tree_id"],
    }
    if args.output:
        replace_json(args.output, found | {"records": result["records"]})
    print(json.dumps(found, indent=2) if args.json else page(found))
    return STATUS[found["verdict"]]


@contextmanager
def _engine_on_stderr() -> Iterator[None]:
    """Within, what this process and the engine's print goes to standard error: the result is alone on the other."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def default_data() -> Path:
    """MATH's problems where `rft.data make` puts them."""
    return Path(os.environ.get("DATA_ROOT") or ".cache/rft/data") / PROBLEMS


def chosen(data: Path | None, n: int, seed: int) -> list[dict]:
    """`n` problems in an order that the seed decides: the first of them are the same for any larger `n`.

    Of the default file, however it is named, MATH's alone: a launcher names it, for run.json and preflight.

    Raises:
        ValueError: no such file, too few problems, or problems that are not answered in a box.
    """
    file = data or default_data()
    default = file.resolve() == default_data().resolve()
    if default and not file.is_file():
        raise ValueError(
            f"found no file {file}; wanted MATH problems of level 4 and 5; make them with .venv/bin/python -m rft.data "
            f"make --out {file.parent}, or name other problems with --data"
        )
    problems = read_problems(file)
    other = [p for p in problems if is_code_label(p["label"]) or is_search_label(p["label"])]
    if other:
        raise ValueError(
            f"{file}: found problem {other[0]['id']!r} of programs or of a search; wanted problems that are answered "
            "in a \\boxed{}; name other problems with --data"
        )
    if default:
        problems = [problem for problem in problems if problem.get("datasource") == "math"]
    if len(problems) < n:
        raise ValueError(
            f"{file}: found {len(problems)} problems, wanted {n}; pass --n {len(problems)} or other --data"
        )
    order = sorted(problems, key=lambda problem: problem["id"])
    random.Random(seed).shuffle(order)
    return order[:n]


def judged(records: list[dict]) -> dict:
    """The rates of `NAMES`, each with `count`, `value` and `interval95`, `n`, the verdict, and what would decide.

    Args:
        records: graded ones of `rft.evals.scores.record`, one a problem.

    Returns:
        `verdict`: `GO`, `SFT` or `UNDECIDED`; `n`; `rates`; `needed`: where it is undecided the number of problems
        that would decide at this rate, None where the rate is the threshold.
    """
    read = [facts(record) for record in records]
    rates = {}
    for name in NAMES:
        count = sum(each[name] for each in read)
        interval = list(wilson_interval(count, len(read)))
        rates[name] = {"count": count, "value": count / len(read), "interval95": interval}
    verdict = verdict_of(rates["boxed"]["count"], len(read))
    needed = problems_needed(rates["boxed"]["count"], len(read)) if verdict == UNDECIDED else None
    return {"verdict": verdict, "needed": needed, "threshold": THRESHOLD, "n": len(read), "rates": rates}


def facts(record: dict) -> dict[str, bool]:
    """Of one answer what `NAMES` lists; the box is looked for where the reward looks, in the final message."""
    text, _, closed = final_message(record["response"], record["channel"])
    opened = record["channel"] in ("analysis", "think") and bool(record["response"].partition("<")[0].strip())
    return {
        "boxed": record["has_boxed"],
        "final": text is not None and closed,
        "reasoning": opened or bool(THOUGHT.search(record["response"])),
        "truncated": record["truncated"],
    }


def verdict_of(boxed: int, n: int) -> str:
    """What the 95% Wilson interval of the rate says of the threshold."""
    low, high = wilson_interval(boxed, n)
    return GO if low >= THRESHOLD else SFT if high < THRESHOLD else UNDECIDED


def problems_needed(boxed: int, n: int) -> int | None:
    """The least number of problems whose interval would decide, were the rate to stay as it is."""
    return next((more for more in range(n + 1, MOST) if verdict_of(round(boxed * more / n), more) != UNDECIDED), None)


def page(found: dict) -> str:
    """The result as text: a line a rate, then the verdict and what to do."""
    lines = [f"{found['model']}: {found['n']} problems of {found['data']}, greedy, {found['reasoning_effort']} effort"]
    for name, what in NAMES.items():
        rate = found["rates"][name]
        low, high = rate["interval95"]
        lines.append(f"  {what:24} {rate['count']:4} of {found['n']}   {rate['value']:.3f} ({low:.3f}-{high:.3f})")
    return "\n".join([*lines, f"verdict: {found['verdict']}: {advice(found)}"])


def advice(found: dict) -> str:
    """The verdict's reason, and the next step."""
    low, high = (f"{end:.1%}" for end in found["rates"]["boxed"]["interval95"])
    least = f"{found['threshold']:.0%}"
    if found["verdict"] == GO:
        return f"at least {low} of the answers have their box, {least} are wanted"
    if found["verdict"] == SFT:
        cut = found["rates"]["truncated"]
        longer = f"; {cut['count']} were cut: try a higher --max-tokens before" if cut["count"] else ""
        return f"at most {high} of the answers have their box, {least} are wanted{longer}"
    if found["needed"] is None:
        return f"between {low} and {high}: the rate is too near {least} for any number of problems"
    return f"between {low} and {high}, {least} are wanted; at this rate --n {found['needed']} would decide"


if __name__ == "__main__":
    sys.exit(main())
