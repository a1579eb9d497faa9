"""A large launcher's run, from its checks to its report, on a random model of its exact shape and made-up sums.

    .venv/bin/python -m benchmarks.rehearsal --shape 20b --work DIR -- launch/train_grpo_20b.sh [OPENRLHF OPTION …]
    .venv/bin/python -m benchmarks.rehearsal --shape 20b --work DIR -- launch/train_grpo_20b_search.sh [OPTION …]

Needs no download and no network: what a cluster lacks, or a preset asks too much of, shows before the checkpoint is
there. Vocabulary and template are gpt-oss's own, so preflight compares real token ids; the reward is chance. RUN_DIR
and the launcher's other variables are handed on; EVAL_REFERENCE is none, since random experts amplify rounding beyond
what the probe of an evaluation allows (docs/benchmarks.md, parity).

A search agent's launcher gets the sums as questions, and a corpus of their results, found by words: random weights
search by chance only, but take all turns, and its own reward.

On a CPU: `--shape tiny`, RAY_ADDRESS of a cluster with logical GPUs, and the preset's GPU options overridden.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path

from benchmarks import ADDED, ROOT
from benchmarks.checkpoint import SHAPES
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
REWARD = ROOT / "benchmarks" / "reward_length_parity.py"


def write_problems(folder: Path, seed: int = 0) -> None:
    """The launchers' files, of sums that differ everywhere."""
    folder.mkdir(parents=True, exist_ok=True)
    sums = random.Random(seed).sample(range(10**6), sum(PROBLEMS.values()))
    for name, count in PROBLEMS.items():
        pairs = [divmod(sums.pop(), 1000) for _ in range(count)]
        rows = [problem_row(f"What is {a} + {b}?", str(a + b), f"{name}/{a}+{b}", "rehearsal") for a, b in pairs]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_questions(folder: Path, seed: int = 0) -> Path:
    """A search agent's files, of sums that differ everywhere; returns the corpus, where each has its passage."""
    folder.mkdir(parents=True, exist_ok=True)
    sums, passages = random.Random(seed).sample(range(10**6), sum(QUESTIONS.values())), []
    for name, count in QUESTIONS.items():
        rows = []
        for a, b in (divmod(sums.pop(), 1000) for _ in range(count)):
            question = Question(f"{name}/{a}+{b}", f"What is {a} + {b}?", (str(a + b),), "rehearsal")
            rows.append(question_row(question, instruction_of(DEFAULT)))
            passages.append({"id": question.id, "title": f"{a} + {b}", "text": f"{a} + {b} is {a + b}."})
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(passage) + "\n" for passage in passages))
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
    task = {"RETRIEVER_INDEX": "bm25"}
    if args.launcher.stem.endswith("_search"):
        task["CORPUS"] = str(write_questions(data / "search"))
        judge = []
    else:
        write_problems(data)
        judge = ["--remote_rm_url", str(REWARD)]
    # As the launcher would find it: what `benchmarks` has added for itself is not the launcher's.
    inherited = {name: value for name, value in os.environ.items() if name not in ADDED}
    environment = {"EVAL_REFERENCE": "none"} | task | inherited | {"MODEL": str(model), "DATA_ROOT": str(data)}
    # In the place of this process, so that Ctrl-C and SIGTERM reach the launcher, which ends what it has started.
    sys.stdout.flush()
    os.execvpe("bash", ["bash", str(args.launcher), *judge, *args.options], environment)


if __name__ == "__main__":
    main()
