"""Let the main block of the installed trainer read training commands, up to where it would start.

python read_commands.py COMMANDS OUT      COMMANDS: a JSON list of lists of words

Writes to OUT for each command what `parse_args` returned, null where it refused, and whether the checks behind it let
the command pass. OpenRLHF builds its parser in that block, which therefore runs as it is, with `train` replaced.
"""

import argparse
import ast
import json
import sys
from pathlib import Path

import openrlhf.cli.train_ppo_ray as module


def main(commands: str, out: str) -> None:
    source = ast.parse(Path(module.__file__).read_text())
    (train,) = [node for node in source.body if getattr(node, "name", None) == "train"]
    train.body = ast.parse("started.append(True)").body
    code = compile(source, module.__file__, "exec")
    parse_args, found = argparse.ArgumentParser.parse_args, []

    def observed(self, *words):
        args = parse_args(self, *words)
        found[-1]["parsed"] = dict(vars(args))  # before the block changes them
        return args

    argparse.ArgumentParser.parse_args = observed
    for words in json.loads(Path(commands).read_text()):
        started: list[bool] = []
        found.append({"parsed": None})
        sys.argv = ["train_ppo_ray", *words]
        try:
            exec(code, {"__name__": "__main__", "started": started})
        except (SystemExit, Exception) as refused:  # upstream dies of a command without a reward
            print(words, "refused:", refused)
        found[-1]["passes"] = bool(started)
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
