#!/usr/bin/env python
"""Compare the checkpoints of a run: all of them on the OOD probe, then the best ones and the baseline on the rest.

Stage 1 ranks by the probe with greedy_pass@1. The highest of many is too high by chance, so stage 2 measures the chosen
ones again, on other problems or with other samples.

    .venv/bin/python eval/eval_model_sweep.py --baseline base=MODEL_DIR --checkpoints RUN/checkpoints \\
        --probe ood.jsonl --dataset aime.jsonl --keep 2 --output sweep.json
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rft.evals import cli
from rft.evals.models import checked

if TYPE_CHECKING:
    from rft.evals.settings import Settings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", required=True, type=cli.named_path, metavar="NAME=PATH")
    parser.add_argument("--model", action="append", default=[], type=cli.named_path, metavar="NAME=PATH")
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="every adapter below this folder, by step")
    parser.add_argument("--probe", required=True, type=Path, metavar="FILE.jsonl", help="OOD probe of stage 1")
    parser.add_argument("--dataset", action="append", default=[], type=Path, metavar="FILE.jsonl", help="of stage 2")
    parser.add_argument("--keep", type=int, default=2, help="checkpoints that reach stage 2")
    parser.add_argument("--stage", type=int, choices=(1, 2), default=2, help="1: stop after the probe")
    cli.add_sampling_options(parser, mode="sampling_pass@8")
    cli.add_output_options(parser)
    return cli.guarded("eval_model_sweep", run, parser.parse_args())


def run(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from rft.evals.compare import add_comparisons
    from rft.evals.run import evaluate
    from rft.evals.table import print_results

    final = cli.settings(args)
    final.drawn()
    named = args.model + (found_adapters(args.checkpoints) if args.checkpoints else [])
    if not named:
        raise ValueError("found no checkpoint; wanted --model NAME=PATH or --checkpoints DIR")
    if args.stage == 2 and not args.dataset:
        raise ValueError("found no --dataset; stage 2 wants problems that did not choose the checkpoint; or --stage 1")
    models = checked([args.baseline, *named], args.base)
    cli.require_ready(models, [args.probe, *args.dataset], args)
    first = replace(final, mode="greedy_pass@1", samples=None, temperature=None)
    if args.stage == 2:
        require_new_samples(args, final, first)
    ranked = evaluate(models, [args.probe], first)
    if args.stage == 1:
        cli.report(ranked, args)
        print_ranking(ranked)
        return 0
    print_results(ranked)
    names = print_ranking(ranked)[: args.keep]
    chosen = [models[0], *(model for model in models[1:] if model.name in names)]
    cli.report(add_comparisons(ranked + evaluate(chosen, args.dataset, final)), args)
    return 0


def require_new_samples(args: argparse.Namespace, final: "Settings", first: "Settings") -> None:
    """Raise ValueError where stage 2 would draw what stage 1 chose by: the same problems in the same mode."""
    from rft.problems import read_problems

    if final.mode != first.mode:
        return
    asked = {json.dumps(problem["input"], sort_keys=True) for problem in read_problems(args.probe)}
    for file in args.dataset:
        again = sum(json.dumps(problem["input"], sort_keys=True) in asked for problem in read_problems(file))
        if again:
            raise ValueError(
                f"{file}: found {again} problems of the probe {args.probe}, and {final.mode} in both stages: the "
                "numbers would be those that chose the checkpoint; pass other problems, or --mode sampling_pass@8"
            )


def found_adapters(folder: Path) -> list[tuple[str, Path]]:
    """Every adapter below a folder, named by its place there, in the order of the numbers in the names.

    Raises ValueError where there is none.
    """
    places = sorted(
        (file.parent for file in folder.rglob("adapter_config.json")),
        key=lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(path))],
    )
    if not places:
        raise ValueError(f"found no adapter below {folder}; wanted folders with adapter_config.json; check the path")
    return [(str(path.relative_to(folder)) if path != folder else folder.name, path) for path in places]


def print_ranking(results: list[dict]) -> list[str]:
    """Print the checkpoints from best to worst on the probe, and return their names; ties keep their order."""
    from rft.evals.compare import outcome

    mode, dataset = results[0]["mode"], results[0]["dataset"]
    ranked = sorted(results[1:], key=lambda r: -r[mode])
    best = ranked[0]
    low, high = best["interval95"]
    print(f"best by {mode} on {dataset}: {best['model']} {best[mode]:.3f} ({low:.3f}-{high:.3f})")
    near = [r["model"] for r in ranked[1:] if r["interval95"][1] >= best[mode]]
    if near:
        print(f"not told apart from it, since their intervals reach its value: {', '.join(near)}")
    found, p = outcome(best["versus"]), best["versus"]["p_holm"]
    if found == "unclear":
        print(f"not told apart from {results[0]['model']} either (p {p:.2g} after Holm): a larger probe must decide")
    else:
        print(f"{found} than {results[0]['model']} (p {p:.2g} after Holm)")
    return [r["model"] for r in ranked]


if __name__ == "__main__":
    sys.exit(main())
