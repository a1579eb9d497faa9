#!/usr/bin/env python3
"""Estimate each problem's pass rate under a model, with vLLM: the input of a curriculum.

    .venv/bin/python data/estimate_pass_rates.py --model DIR --dataset pool.jsonl --n 8 \\
        --cache cache.jsonl --out rates.jsonl

Samples are kept in the cache, which only grows: run the command again after a kill, or with a larger --n, and only what
is missing is sampled. Of code tasks a code server judges the programs: start .venv/bin/python -m rft.code_server first,
or name one in CODE_SERVER_URL. Of search tasks, evaluate the agent with --mode sampling_pass@8 and pass the result with
--evaluation, in place of --model and --cache. GPU or CPU; the time is that of generating n responses to every problem.
"""

import argparse
import sys
from pathlib import Path

from rft.data.row_files import command
from rft.options.effort import EFFORTS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="DIR", help="checkpoint directory")
    parser.add_argument(
        "--evaluation", type=Path, metavar="FILE.json",
        help="no samples of its own: the rates of eval_posthoc.py's --output, as of conversations (--agent)",
    )  # fmt: skip
    parser.add_argument("--dataset", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument("--n", type=int, default=8, help="samples a problem")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--max-tokens", type=int, default=4096, help="completion length limit")
    parser.add_argument("--max-prompt-tokens", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--reasoning-effort", "--reasoning_effort", choices=EFFORTS, help="as in training; default: the template's own"
    )
    parser.add_argument("--cache", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl")
    return command("estimate_pass_rates", lambda: run(parser.parse_args()))


def run(args: argparse.Namespace) -> None:
    from rft.checkpoint_check import require_gpt_oss
    from rft.data.pass_rates import Sampling, estimate, from_evaluation

    given = [name for name in ("model", "cache", "evaluation") if getattr(args, name)]
    if given not in (["model", "cache"], ["evaluation"]):
        raise ValueError(
            f"found --{' --'.join(given) or 'out alone'}, wanted --model DIR and --cache FILE, or --evaluation FILE"
        )
    if args.evaluation:
        rates = from_evaluation(args.evaluation, args.dataset, args.out)
    else:
        require_gpt_oss(args.model)
        limits = (args.max_tokens, args.max_prompt_tokens)
        sampling = Sampling(args.n, args.temperature, args.top_p, *limits, args.seed, args.reasoning_effort)
        rates = estimate(args.model, args.dataset, sampling, args.cache, args.out)
    mean = sum(r["pass_rate"] for r in rates) / len(rates)
    solved, failed = (sum(r["pass_rate"] == bound for r in rates) for bound in (1, 0))
    print(f"{args.out}: {len(rates):,} problems, mean pass@1 {mean:.3f}, {solved:,} always solved, {failed:,} never")


if __name__ == "__main__":
    sys.exit(main())
