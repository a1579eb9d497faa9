#!/usr/bin/env python
"""Check that the evaluation in the training loop and the post-hoc one of the same checkpoint agree, or name why not.

    .venv/bin/python eval/eval_posthoc.py --model step40=RUN/checkpoint … --dataset heldout.jsonl --output out.json
    .venv/bin/python eval/eval_regression_check.py --run RUN --step 40 --posthoc out.json --model step40

Exit status 0: they agree, 1: they do not, 2: bad input. No engine, seconds.
"""

import argparse
import sys
from pathlib import Path

from rft.evals import cli


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, metavar="RUN_DIR")
    parser.add_argument("--step", type=int, help="default: the last one that was evaluated")
    parser.add_argument("--posthoc", type=Path, required=True, metavar="RESULT.json")
    parser.add_argument("--model", help="name of the result, where the file has several")
    parser.add_argument(
        "--samples", type=Path, help="default: eval_samples_step<N>.jsonl.gz in $SAMPLES_LOG_DIR or RUN_DIR/samples"
    )
    parser.add_argument("--averages", action="store_true", help="compare only the averages that the run logged")
    parser.add_argument(
        "--allow", type=int, default=0, metavar="N", help="problems that may differ, named all the same"
    )
    return cli.guarded("eval_regression_check", run, parser.parse_args())


def run(args: argparse.Namespace) -> int:
    from rft.evals.regression import averages, compare_files, last_step
    from rft.evals.results import read_results
    from rft.record.readers import samples_dir
    from rft.record.samples import EVALUATION, sample_file

    results = [r for r in read_results([args.posthoc]) if args.model in (None, r["model"])]
    if len(results) != 1:
        names = sorted({r["model"] for r in read_results([args.posthoc])})
        raise ValueError(f"{args.posthoc}: found {len(results)} results, wanted one; choose by --model from {names}")
    (posthoc,) = results
    step = last_step(args.run) if args.step is None else args.step
    label = f"{posthoc['mode']} on {posthoc['dataset']}"
    if args.averages:
        rows = averages(args.run, step, posthoc)
        for name, in_training, value in rows:
            print(f"step {step}, {name} {in_training:.4f} in training, {label} {value:.4f} post hoc")
        return int(any(abs(in_training - value) > 1e-9 for _, in_training, value in rows))
    file = args.samples or sample_file(samples_dir(args.run), EVALUATION, step)
    common, differences = compare_files(file, posthoc)
    for one in differences:
        shares = " ".join("-" if share is None else f"{share:.2f}" for share in (one.training, one.posthoc))
        print(f"{one.problem}: {shares} ({one.cause})")
    print(f"step {step}, {label}: {common} problems in both, {len(differences)} differ")
    return int(len(differences) > args.allow)


if __name__ == "__main__":
    sys.exit(main())
