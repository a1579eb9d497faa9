"""The command `rft`: a map of what there is, and a short way to each of it. The scripts behind stay what they are."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TRAIN = "train_grpo_"  # how the launchers' names begin


class Command(NamedTuple):
    """One command: what it does in a line, and the words that do it; a script is named by its path in the checkout."""

    what: str
    words: tuple[str, ...]


def module(name: str, what: str) -> Command:
    return Command(what, (sys.executable, "-m", name))


def script(path: str, what: str) -> Command:
    return Command(what, ("bash", str(ROOT / path)))


# Name -> what it calls, in the order of a run.
COMMANDS = {
    "data": module("rft.data", "make the problem files, check them"),
    "format-check": module("rft.runs.format_check", "does a model box its answers, or does it need SFT first"),
    "preflight": module("rft.runs.preflight", "check a training command against this machine"),
    "train": Command("a complete run: accuracy before, GRPO, accuracy after, report", ("bash",)),
    "monitor": module("rft.runs.monitor", "watch a run"),
    "samples": module("rft.runs.samples", "read what the policy wrote"),
    "diagnose": module("rft.runs.diagnose", "is this run healthy, and if not, what to change"),
    "resume": script("launch/resume.sh", "go on with a run that ended early"),
    "slurm": script("launch/slurm.sh", "runs as jobs of Slurm: submit, status, logs, cancel, resume, smoke"),
    "sagemaker": script(
        "launch/sagemaker.sh", "runs as training jobs of AWS: submit, status, logs, stop, resume, list"
    ),
    "report": module("rft.runs.report", "one page about a run, or about several"),
    "code-server": module("rft.code_server", "judge programs of the model, each in a sandbox"),
    "evaluate": Command("a model or adapter on problem files", (sys.executable, str(ROOT / "eval/eval_posthoc.py"))),
    "promote": module("rft.runs.promote", "take the best adapter of a run instead of the last"),
    "serve": module("rft.serve", "answer over HTTP as the policy that was trained"),
    "push": module("rft.push", "publish an adapter with its model card"),
    "attempt": module("rft.runs.attempt", "keep a record of experiments"),
    "patches": module("rft.overlay", "the patches: apply, verify, author"),
}


def main() -> int:
    """Replace this process by the command's, whose exit status is the answer. 0 after the map, 2 for bad use."""
    name, *rest = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help", "help"):
        print(page())
        return 0
    if name not in COMMANDS:
        print(
            f"rft: found {name!r}; wanted one of {', '.join(COMMANDS)}; rft --help shows what each does",
            file=sys.stderr,
        )
        return 2
    words = list(COMMANDS[name].words)
    if name == "train":
        launchers = {file.stem.removeprefix(TRAIN): str(file) for file in sorted(ROOT.glob(f"launch/{TRAIN}*.sh"))}
        if not rest or rest[0] not in launchers:
            found = repr(rest[0]) if rest else "nothing"
            print(f"rft train: found {found}; wanted one of {', '.join(launchers)}", file=sys.stderr)
            return 0 if rest[:1] in (["-h"], ["--help"]) else 2
        words.append(launchers[rest.pop(0)])
    os.execvp(words[0], words + rest)


def page() -> str:
    """The map, as text."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.what}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: rft COMMAND [ARGUMENT …]        rft COMMAND --help shows a command's own",
            "",
            *lines,
            "",
            "rft train tiny needs no GPU. Variables of launchers work as ever: DRY_RUN=1 rft train 20b",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
