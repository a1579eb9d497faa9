"""A large launcher's run, from its checks to its report, on a random model of its exact shape and made-up sums.

    .venv/bin/python -m benchmarks.rehearsal --shape 20b --work DIR -- launch/train_grpo_20b.sh [OPENRLHF OPTION …]
    .venv/bin/python -m benchmarks.rehearsal --shape 20b --work DIR -- launch/train_grpo_20b_search.sh [OPTION …]
    .venv/bin/python -m benchmarks.rehearsal --shape 20b --work DIR -- launch/sft_20b.sh [OPTION …]

Needs no download and no network: what a cluster lacks, or a preset asks too much of, shows before the checkpoint is
there. Vocabulary and template are gpt-oss's own, so preflight compares real token ids; the reward is chance. RUN_DIR
and the launcher's other variables are handed on; EVAL_REFERENCE is none, since random experts amplify rounding beyond
what the probe of an evaluation allows (docs/benchmarks.md, parity).

A search agent's launcher gets the sums as questions, and a corpus of their results, found by words: random weights
search by chance only, but take all turns, and its own reward. A supervised training's launcher gets sums that are
worked out at lengths from a few tokens to 2,000; no weights give a box, before or behind a few steps.

On a CPU: `--shape tiny`, RAY_ADDRESS of a cluster with logical GPUs, and the preset's GPU options overridden.
"""

import argparse
import os
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from benchmarks import ADDED, ROOT
from benchmarks.checkpoint import SHAPES
from rft.data.row_files import write_rows
from rft.data.search.prompts import DEFAULT, instruction_of
from rft.data.search.questions import Question, question_row
from rft.problems import problem_row

PROBLEMS = {
    "sft_rl_pool.jsonl": 400,
    "sft_rl_pool_400.jsonl": 400,
    "probe_set_200_ood.jsonl": 32,
    "probe_set_1000_ood.jsonl": 64,
}
QUESTIONS = {
    "search_train.jsonl": 400,
    "search_probe.jsonl": 32,
    **dict.fromkeys((f"{name}.jsonl" for name in ("nq", "hotpotqa", "musique", "bamboogle")), 16),
}
SUPERVISED = {"sft_train.jsonl": 320, "sft_dev.jsonl": 32}
LINES = 128  # of the longest thinking, about 15 tokens each
REWARD = ROOT / "benchmarks" / "reward_length_parity.py"


class Sum(NamedTuple):
    id: str
    terms: str  # "12 + 345"
    value: str

    @property
    def question(self) -> str:
        return f"What is {self.terms}?"


def sums_of(counts: dict[str, int], seed: int = 0) -> dict[str, list[Sum]]:
    """As many sums for each file as it takes; no two are equal."""
    numbers = iter(random.Random(seed).sample(range(10**6), sum(counts.values())))
    files = {name: [divmod(number, 1000) for number in islice(numbers, count)] for name, count in counts.items()}
    return {name: [Sum(f"{name}/{a}+{b}", f"{a} + {b}", str(a + b)) for a, b in pairs] for name, pairs in files.items()}


def write_problems(folder: Path) -> None:
    """The launchers' files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, sums in sums_of(PROBLEMS).items():
        source = "math" if name.startswith("probe_set") else "rehearsal"  # which the format check asks
        write_rows(folder / name, (problem_row(each.question, each.value, each.id, source) for each in sums))


def write_turns(folder: Path) -> None:
    """Rows of a supervised training: sums with the turn to learn, at even shares of lengths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, sums in sums_of(SUPERVISED).items():
        write_rows(folder / name, (_worked(each, 1 + number * 37 % LINES) for number, each in enumerate(sums)))


def _worked(each: Sum, lines: int) -> dict:
    thinking = "\n".join(f"{number}: {each.terms} is {each.value}." for number in range(lines))
    turn = {"role": "assistant", "thinking": thinking, "content": f"\\boxed{{{each.value}}}"}
    return problem_row(each.question, each.value, each.id, "rehearsal") | {"output": [turn]}


def write_questions(folder: Path) -> Path:
    """A search agent's files; returns the corpus, where each question has its passage."""
    folder.mkdir(parents=True, exist_ok=True)
    instruction, corpus, passages = instruction_of(DEFAULT), folder / "corpus.jsonl", []
    for name, sums in sums_of(QUESTIONS).items():
        asked = (Question(each.id, each.question, (each.value,), "rehearsal") for each in sums)
        write_rows(folder / name, (question_row(question, instruction) for question in asked))
        passages += ({"id": s.id, "title": s.terms, "text": f"{s.terms} is {s.value}."} for s in sums)
    write_rows(corpus, passages)
    return corpus


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/rft-bench"), help="folder of checkpoint and problems")
    parser.add_argument("launcher", type=Path, help="launch/train_grpo_….sh, after --")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of OpenRLHF; they come last and win")
    args = parser.parse_args()
    work = args.work.resolve()
    model, data = work / f"{args.shape}-harmony", work / "rehearsal"
    # In a process of its own, which takes its share of the GPU with it.
    make = [sys.executable, "-m", "benchmarks.checkpoint", "--shape", args.shape, "--harmony", "--out", str(model)]
    subprocess.run(make, cwd=ROOT, check=True)
    if args.launcher.stem.endswith("_search"):
        task, judge = {"CORPUS": str(write_questions(data / "search")), "RETRIEVER_INDEX": "bm25"}, []
    else:
        write_problems(data)
        task, judge = {}, ["--remote_rm_url", str(REWARD)]
    if args.launcher.stem.startswith("sft_"):
        write_turns(data)
        judge = []
    # As the launcher would find it: what `benchmarks` has added for itself is not the launcher's.
    inherited = {name: value for name, value in os.environ.items() if name not in ADDED}
    environment = {"EVAL_REFERENCE": "none"} | task | inherited | {"MODEL": str(model), "DATA_ROOT": str(data)}
    # In the place of this process, so that Ctrl-C and SIGTERM reach the launcher, which ends what it has started.
    sys.stdout.flush()
    os.execvpe("bash", ["bash", str(args.launcher), *judge, *args.options], environment)


if __name__ == "__main__":
    main()
