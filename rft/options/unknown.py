"""What a command line that argparse cannot read is told, by trainer, preflight and launcher alike."""

import argparse
import difflib

MODULE = "openrlhf.cli.train_ppo_ray"
SFT_MODULE = "openrlhf.cli.train_sft"


def explain(parser: argparse.ArgumentParser, message: str) -> str:
    """A message of argparse as found, wanted, repair where it is about an option that does not exist."""
    listed = f".venv/bin/python -m {SFT_MODULE if parser.prog == SFT_MODULE else MODULE} --help lists the options"
    found = message.removeprefix("unrecognized arguments: ")
    if found == message:
        return f"command: {message}; {listed}"
    if {"-h", "--help"} & set(found.split()):
        return f"command: --help stands alone, as in bash launch/train_grpo_20b.sh --help (docs/running.md); {listed}"
    words = [word for word in found.split() if word.startswith("--") and word != "--"]
    name = words[0].partition("=")[0] if words else None
    if name is None:
        return (
            f"command: words that belong to no option\n  found:  {found}\n"
            f"  wanted: each value after its option, one with blanks in quotes\n  repair: {listed}"
        )
    names = list(parser._option_string_actions)
    close = [each for each in names if each.startswith(name)] or difflib.get_close_matches(name, names, 1)
    meant = f"did you mean {' or '.join(close[:3])}? " if close else ""
    wanted = "an option of the trainer, its name written out"
    return f"command: no such option\n  found:  {found}\n  wanted: {wanted}\n  repair: {meant}{listed}"
