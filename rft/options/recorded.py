"""The options of a recorded training command, and what two commands have different."""

import hashlib
import json
import re
from pathlib import Path

from rft.options.command import given

PRIVATE = re.compile(r"(wandb|token|secret|password|api_?key)", re.IGNORECASE)
INTERPRETER = re.compile(r"(/(?:.*?/)?)\.venv(?:-[cg]pu[-0-9.]*)?/")  # of a checkout: see launch/stack.sh


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


def options(command: list[str]) -> dict[str, str]:
    """Options of a training command by name, their words joined by blanks, the last of a name; a bare flag is "on".

    Args:
        command: `PYTHON -m openrlhf.cli.train_ppo_ray --option value …`, with anything before it.
    """
    return {name: _text(words) for name, words in given(command).items()}


def shown_options(command: list[str], run_dir: Path) -> dict[str, str]:
    """`options` as a page or a log may show them, and two runs may be compared: paths relative, keys hidden."""
    shown = {}
    for name, words in given(command).items():
        value = " ".join(words)
        if (value and PRIVATE.search(name)) or (name == "remote_rm_url" and "://" in value):
            shown[name] = f"hidden ({hashlib.sha256(value.encode()).hexdigest()[:6]})"  # still tells two values apart
        else:
            shown[name] = _text([shortened(word, command, run_dir) for word in words])
    return shown


def shortened(path: str, command: list[str], run_dir: Path) -> str:
    """A path without the places of a run and of its checkout: RUN/adapter, rewards/reward.py; other text as it is.

    The run directory's path at the start of the run is known by its last two names, or by --save_path when that
    is in it; the checkout by the interpreter in its `.venv`, `.venv-cpu` or `.venv-gpu`.
    """
    saved = Path(options(command).get("save_path", "on"))
    moved = saved.is_absolute() and saved.parent != saved.parent.parent and (run_dir / saved.name).exists()
    checkout = next((found[1] for word in command if (found := INTERPRETER.match(word))), "")
    places = [re.escape(str(run_dir)), rf"/(?:.*/)?{re.escape(run_dir.parent.name)}/{re.escape(run_dir.name)}"]
    places += [re.escape(str(saved.parent))] if moved else []
    path = re.sub(rf"^(?:{'|'.join(places)})(?=/|$)", "RUN", path)
    return path.removeprefix(checkout)


def differences(there: dict[str, str], here: dict[str, str]) -> list[tuple[str, str | None, str | None]]:
    """(option, value there, value here) of every option that differs, by name; None where it is not given.

    Numbers are compared as numbers: 5e-7 and 0.0000005 are equal.
    """
    names = sorted(there.keys() | here.keys())
    return [(n, there.get(n), here.get(n)) for n in names if comparable(there.get(n)) != comparable(here.get(n))]


def comparable(value: str | None) -> list | None:
    """The words of a value, numbers as such."""
    return None if value is None else [_number(word) for word in value.split(" ")]


def _text(words: list[str]) -> str:
    return " ".join(words) if words else "on"


def _number(word: str) -> float | str:
    try:
        return float(word)
    except ValueError:
        return word
