"""What a run was started with: options of its command, fingerprints, and where several runs differ."""

import hashlib
import re
from pathlib import Path

from rft.runs.report_data import Run

NOT_SHOWN = ("command", "stopped")  # of run.json; they have places of their own
ABSENT = "not set"
PRIVATE = re.compile(r"(wandb|token|secret|password|api_?key)", re.IGNORECASE)


def options(command: list[str]) -> dict[str, str]:
    """Options of a training command by name, the last of a name; a flag without a value is "on"."""
    words = [str(word) for word in command]
    found, name = {}, None
    for word in words[words.index("-m") + 2 :] if "-m" in words else words:
        if re.match(r"--[A-Za-z]", word):
            name, separator, value = word[2:].partition("=")
            found[name] = [value] if separator else []
        elif name is not None:
            found[name].append(word)
    return {name: " ".join(values) or "on" for name, values in found.items()}


def shown_options(run: Run) -> dict[str, str]:
    """Options of the run as its report shows them: paths relative, keys hidden."""
    command = run.manifest.get("command")
    found = options(command) if isinstance(command, list) else {}
    hidden = {
        name: f"hidden ({hashlib.sha256(value.encode()).hexdigest()[:6]})"  # still tells two values apart
        for name, value in found.items()
        if (PRIVATE.search(name) and value != "on") or (name == "remote_rm_url" and "://" in value)
    }
    return {name: shortened(value, run) for name, value in (found | hidden).items()}


def shortened(text: str, run: Run) -> str:
    """A text without this run's and this checkout's places: RUN/adapter, rewards/reward.py.

    Two runs that save to their own directories then have the same option. Where the run directory stood when the run
    was started is known by its last two names, or by --save_path when that lies in it; the checkout by the interpreter
    in its `.venv`.
    """
    parent, name = (re.escape(part) for part in (run.path.parent.name, run.path.name))
    command = run.manifest.get("command")
    words = [str(word) for word in command] if isinstance(command, list) else []
    text = text.replace(str(run.path), "RUN")
    text = re.sub(rf"(?<!\S)(?:/[^/\s]+)*/{parent}/{name}(?=/|\s|$)", "RUN", text)
    saved = Path(options(words).get("save_path", "on"))
    if saved.is_absolute() and saved.parent != saved.parent.parent and (run.path / saved.name).exists():
        text = re.sub(rf"(?<!\S){re.escape(str(saved.parent))}(?=/|\s|$)", "RUN", text)
    interpreter = next((word for word in words if word.startswith("/") and "/.venv/" in word), None)
    return text.replace(interpreter.split("/.venv/")[0] + "/", "") if interpreter else text


def fingerprints(run: Run) -> dict[str, str]:
    """run.json flattened, without the command: `git.commit`, `tree_id.vllm`, `versions.torch`, `inputs.RUN/model`."""
    found = {}

    def add(prefix: str, value) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                add(f"{prefix}.{key}" if prefix else str(key), item)
        else:
            found[shortened(prefix, run)] = shortened(str(value), run)

    add("", {key: value for key, value in run.manifest.items() if key not in NOT_SHOWN})
    return found


def table(columns: list[dict[str, str]]) -> list[dict]:
    """One row a name, in order of first appearance: `name`, `values` (one a run), `differs`."""
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = [{"name": name, "values": [column.get(name, ABSENT) for column in columns]} for name in names]
    return [row | {"differs": len(set(row["values"])) > 1} for row in rows]


def base_model(run: Run) -> str | None:
    """Identity of the model that training started from: a recorded digest, else its name; None where neither tells."""
    for results in run.posthoc.values():
        for result in results:
            weights = result.get("weights")
            if isinstance(weights, dict) and weights.get("base"):
                return str(weights["base"])
    command, inputs = run.manifest.get("command"), run.manifest.get("inputs")
    path = options(command).get("pretrain") if isinstance(command, list) else None
    if path and isinstance(inputs, dict) and inputs.get(path):
        return str(inputs[path])
    return None if path is None or shortened(path, run).startswith("RUN") else path


def labels(paths: list[Path]) -> list[str]:
    """A, B, C, … for several runs, the directory's name for one."""
    return [chr(ord("A") + i) for i in range(len(paths))] if len(paths) > 1 else [paths[0].resolve().name]
