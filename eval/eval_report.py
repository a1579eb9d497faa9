#!/usr/bin/env python
"""Tables, JSON and one HTML page from results of earlier evaluations; --regrade grades their responses again.

Needs no engine and no model: use it to apply a corrected grader to old results, or with --dataset corrected labels.

    .venv/bin/python eval/eval_report.py before.json after.json --html report.html
    .venv/bin/python eval/eval_report.py out.json --regrade --output out.regraded.json
    .venv/bin/python eval/eval_report.py out.json --regrade --dataset heldout.jsonl --output out.relabelled.json
"""

import argparse
import sys
from pathlib import Path

from rft.evals import cli


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument("--baseline", metavar="NAME", help="compare the others with this model (default: the first)")
    parser.add_argument("--regrade", action="store_true", help="grade every response again with the current grader")
    parser.add_argument(
        "--dataset", action="append", default=[], type=Path, metavar="FILE.jsonl",
        help="with --regrade: take the labels of the results on this dataset from the file, by problem id",
    )  # fmt: skip
    cli.add_output_options(parser)
    return cli.guarded("eval_report", run, parser.parse_args())


def run(args: argparse.Namespace) -> int:
    from rft.evals.compare import add_comparisons
    from rft.evals.identity import grader_digest
    from rft.evals.results import read_results, regrade, relabel

    if args.dataset and not args.regrade:
        raise ValueError("found --dataset without --regrade; wanted both: labels count when responses are graded")
    results = read_results(args.results)
    relabel(results, args.dataset)
    if args.regrade:
        changed = regrade(results, grader_digest())
        for one in changed:
            place = f"{one['model']} on {one['dataset']}, {one['id']} sample {one['index']}"
            was, now = ("right" if one[side] else "wrong" for side in ("before", "after"))
            print(f"{place}: answer {one['answer']!r} for {one['label']!r} was {was}, is {now}")
        print(f"graded again: {len(changed)} of {sum(len(r['records']) for r in results)} verdicts changed")
    cli.report(add_comparisons(results, baseline=args.baseline), args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
