"""The options of a recorded training command, and what two commands have different."""

import json
import re
from pathlib import Path

MODULE = "openrlhf.cli.train_ppo_ray"


def read_manifest(run_dir: Path) -> dict:
    """The run's `run.json`. Raises ValueError where there is none, or it is not one."""
    path = run_dir / "run.json"
    if not path.is_file():
        raise ValueError(f"found no {path}; wanted a run directory, with its run.json; correct the path")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}); wanted the manifest that the launcher wrote") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("command"), list):
        raise ValueError(f"{path}: found no command in it; wanted the manifest that the launcher wrote")
    return manifest


def training_options(command: list[str], run_dir: Path) -> dict[str, str]:
    """Option -> its words, joined by blanks; an option without a value has "". The last of an option counts.

    Args:
        command: `PYTHON -m openrlhf.cli.train_ppo_ray --option value …`, with anything before it.
        run_dir: the run's directory, also after a move: what stands in front of its last two names is ignored.
            Paths below it become `RUN_DIR/…`, those below the checkout `./…`, so that two runs can be compared.

    Raises:
        ValueError: the command trains nothing.
    """
    if MODULE not in command:
        raise ValueError(f"found no {MODULE} in the command; wanted a training command")
    start = command.index(MODULE)
    root = command[start - 2].removesuffix("/.venv/bin/python") if start >= 2 else ""
    own = re.compile(rf"^/.*/{re.escape(run_dir.parent.name)}/{re.escape(run_dir.name)}(?=/|$)")
    options, name = {}, None
    for word in command[start + 1 :]:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            options[name] = [value] if value else []
        elif name is not None:
            options[name].append(word)

    def place(word: str) -> str:
        word = own.sub("RUN_DIR", word)
        return "." + word.removeprefix(root) if root.startswith("/") and word.startswith(root + "/") else word

    return {option: " ".join(map(place, words)) for option, words in options.items()}


def differences(there: dict[str, str], here: dict[str, str]) -> list[tuple[str, str | None, str | None]]:
    """(option, value there, value here) of every option that differs, by name; None where it is not given.

    Numbers are compared as numbers: 5e-7 and 0.0000005 are equal.
    """
    names = sorted(there.keys() | here.keys())
    return [(n, there.get(n), here.get(n)) for n in names if comparable(there.get(n)) != comparable(here.get(n))]


def comparable(value: str | None) -> list | None:
    """The words of a value, numbers as such."""
    return None if value is None else [_number(word) for word in value.split(" ")]


def _number(word: str) -> float | str:
    try:
        return float(word)
    except ValueError:
        return word
