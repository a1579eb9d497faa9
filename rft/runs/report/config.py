"""What a run was started with: options of its command, fingerprints, and where several runs differ."""

from pathlib import Path

from rft.options import recorded
from rft.options.recorded import comparable
from rft.record import adapters
from rft.runs.find import read_json
from rft.runs.report.data import Run

ROOT = Path(__file__).resolve().parents[3]
NOT_SHOWN = ("command", "stopped")  # of run.json; they have places of their own
ABSENT = "not set"


def launched(run: Run) -> tuple[str, str]:
    """(launcher, recipe), empty where they are not known: from launch.json, else runs/<launcher>/<time>."""
    found, name = read_json(run.path / "launch.json"), run.path.parent.name
    if isinstance(found.get("launcher"), str):
        name = Path(found["launcher"]).stem
    elif not (ROOT / "launch" / f"{name}.sh").is_file():
        name = ""
    variables = found.get("environment")
    return name, str(variables.get("RECIPE") or "") if isinstance(variables, dict) else ""


def command_of(run: Run) -> list[str]:
    """The run's training command; empty where run.json has none."""
    command = run.manifest.get("command")
    return [str(word) for word in command] if isinstance(command, list) else []


def shown_options(run: Run) -> dict[str, str]:
    """Options of the run as its report shows them: paths relative, keys hidden."""
    return recorded.shown_options(command_of(run), run.path)


def shortened(text: str, run: Run) -> str:
    """A path without this run's and this checkout's places."""
    return recorded.shortened(text, command_of(run), run.path)


def fingerprints(run: Run) -> dict[str, str]:
    """run.json flattened, without the command: `git.commit`, `tree_id.vllm`, `versions.torch`, `inputs.RUN/model`."""
    found = {}

    def add(prefix: str, value) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                key = shortened(str(key), run)
                add(f"{prefix}.{key}" if prefix else key, item)
        else:
            found[prefix] = shortened(str(value), run)

    shown = {key: value for key, value in run.manifest.items() if key not in NOT_SHOWN}
    if adapters.CHAIN in shown:
        shown[adapters.CHAIN] = adapters.told(shown[adapters.CHAIN]) or "a new adapter"
    add("", shown)
    return found


def table(columns: list[dict[str, str]]) -> list[dict]:
    """One row a name, in order of first appearance: `name`, `values` (one a run), `differs`."""
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = [{"name": name, "values": [column.get(name, ABSENT) for column in columns]} for name in names]
    return [
        row | {"differs": any(comparable(v) != comparable(row["values"][0]) for v in row["values"])} for row in rows
    ]


def base_model(run: Run) -> str | None:
    """Identity of the model that training started from: a recorded digest, else its name; None where neither tells."""
    for results in run.posthoc.values():
        for result in results:
            weights = result.get("weights")
            if isinstance(weights, dict) and weights.get("base"):
                return str(weights["base"])
    path, inputs = recorded.options(command_of(run)).get("pretrain"), run.manifest.get("inputs")
    if path and isinstance(inputs, dict) and inputs.get(path):
        return str(inputs[path])
    return None if path is None or shortened(path, run).startswith("RUN") else path


def labels(paths: list[Path]) -> list[str]:
    """A, B, C, … for several runs, the directory's name for one."""
    return [chr(ord("A") + i) for i in range(len(paths))] if len(paths) > 1 else [paths[0].resolve().name]
