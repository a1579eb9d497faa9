"""What `launch/resume.sh` does: find how a run was started, refuse what differs, and start its launcher again.

Standard library only: .venv may be half of an installation, which the launcher repairs.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from datetime import datetime
from pathlib import Path

from rft.options.command import given, module_of
from rft.options.recorded import differences, options
from rft.record.flags import flag
from rft.runs.find import find_run
from rft.runs.launched import FILE, NAMES, PATHS

SHARE = "vllm_gpu_memory_utilization"  # where it is not given, the launcher computes it from the memory free at a start


def main() -> int:
    parser = argparse.ArgumentParser(prog="launch/resume.sh", allow_abbrev=False, add_help=False)
    parser.add_argument("run", type=Path, help="a run's directory, or a launcher's folder")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of OpenRLHF; they come last and win")
    args = parser.parse_args()
    try:
        run = find_run(args.run).resolve()
        if run != args.run.resolve():
            print(f"the newest run: {run}")
        if finished(run) and not args.options:
            print(f"{run} is finished: nothing to resume. Its results: {run}/result.json, {run}/report.html")
            return 0
        start(run, args.options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
    return 1


def finished(run: Path) -> bool:
    """Whether the run was trained and measured; results from before its last start do not count."""
    result, manifest = run / "result.json", read(run / "run.json")
    if not result.is_file():
        return False
    return not manifest or result.stat().st_mtime >= datetime.fromisoformat(manifest["started"]).timestamp()


def start(run: Path, more: list[str]) -> None:
    """Replace this process by the run's launcher, with the options `more` behind those of the last start.

    Raises:
        ValueError: what differs from the last start: found, wanted, repair.
    """
    launch, manifest = read(run / FILE), read(run / "run.json")
    if not launch:
        raise refusal(
            "how the run was started is not known",
            f"no {FILE} in {run}",
            "the file that a launcher writes at the start",
            f"its launcher once more with RUN_DIR={shlex.quote(str(run))}, --load_checkpoint, and the options and "
            "variables of its start",
        )
    if Path(launch["run_dir"]).resolve() != run:
        raise refusal("the run was moved", run, launch["run_dir"], shlex.join(["mv", str(run), launch["run_dir"]]))
    for what, path in (("launcher", launch["launcher"]), ("folder of the start", launch["cwd"])):
        if not Path(path).exists():
            raise refusal(f"the {what} is gone", f"no {path}", "the same as at the start", "bring it back")
    environment = environment_of(launch)
    words = launch["options"] + computed(manifest, launch)
    if manifest and not allowed():
        require_same_command(launch, words, environment, manifest["command"])
    checkpoint = newest_checkpoint(manifest)
    if (run / "trained").is_file() and not more:
        print(f"{run} is trained to its end: it is measured", flush=True)
        environment["MEASURE_ONLY"] = "1"
    elif checkpoint:
        print(f"resuming {run} from {checkpoint}", flush=True)
    os.chdir(launch["cwd"])
    command = ["bash", launch["launcher"], *words, "--load_checkpoint", *more]
    os.execvpe("bash", command, environment)


def environment_of(launch: dict) -> dict[str, str]:
    """This process's environment with the variables of the start.

    Raises:
        ValueError: one of them is set to something else now.
    """
    former = launch["environment"]
    ours = {name: os.environ[name] for name in NAMES if os.environ.get(name)}
    same = {name for name, value in ours.items() if value == former.get(name)}
    same |= {
        name
        for name in ours.keys() & former.keys() & set(PATHS)
        if Path(ours[name]).resolve() == Path(launch["cwd"], former[name]).resolve()
    }
    differing = {name: former.get(name) for name in ours if name not in same}
    if differing and not allowed():
        found = ", ".join(f"{name}={ours[name]}" for name in differing)
        wanted = ", ".join(f"{name}={then}" if then else f"{name} unset" for name, then in differing.items())
        raise refusal("the environment differs from the start's", found, wanted, f"unset {' '.join(differing)}")
    changed = {name: ours[name] for name in differing}
    return dict(os.environ) | former | changed | {"RUN_DIR": launch["run_dir"]}


def computed(manifest: dict, launch: dict) -> list[str]:
    """The engine's part of a GPU as the first start computed it, which another free memory would change."""
    then = given(manifest.get("command") or [])
    if SHARE in then and not any(word.partition("=")[0] == f"--{SHARE}" for word in launch["options"]):
        return [f"--{SHARE}", *then[SHARE]]
    return []


def require_same_command(launch: dict, words: list[str], environment: dict, former: list[str]) -> None:
    """The launcher makes the training command of the last start, as a dry run shows.

    Raises:
        ValueError: options that differ, or what the launcher says.
    """
    shown = subprocess.run(
        ["bash", launch["launcher"], *words],
        env=environment | {"DRY_RUN": "1"},
        cwd=launch["cwd"],
        capture_output=True,
        text=True,
        check=False,
    )
    if shown.returncode:
        raise ValueError(f"{launch['launcher']} refuses the options of the last start:\n{shown.stderr.rstrip()}")
    lines = [words for words in map(shlex.split, shown.stdout.splitlines()) if module_of(words)]
    then, now = (comparable(command) for command in (former, lines[-1] if lines else []))
    differing = differences(then, now)
    if differing:
        found, wanted = (
            ", ".join(f"--{name} {row[at]}" if row[at] is not None else f"no --{name}" for name, *row in differing)
            for at in (1, 0)
        )
        repair = "bring launcher and presets back to the commit of run.json, or give the options after RUN and "
        raise refusal("the launcher makes another command now", found, wanted, repair + "ALLOW_CHANGED=1")


def comparable(command: list[str]) -> dict[str, str]:
    """The options of a training command without those in which starts of one run differ."""
    found = options(command)
    return {name: value for name, value in found.items() if name not in ("load_checkpoint", "use_wandb")}


def newest_checkpoint(manifest: dict) -> Path | None:
    """The complete checkpoint from which the trainer would go on."""
    folder = Path(*given(manifest.get("command") or []).get("ckpt_path", ["."]), "_actor")
    latest = folder / "latest"
    return folder / latest.read_text().strip() if latest.is_file() else None


def allowed() -> bool:
    """Whether differences are wanted."""
    return flag("ALLOW_CHANGED")


def refusal(what: str, found: object, wanted: object, repair: str) -> ValueError:
    return ValueError(f"{what}\n  found:  {found}\n  wanted: {wanted}\n  repair: {repair}")


def read(file: Path) -> dict:
    """The JSON object of a file; empty where there is no file.

    Raises:
        ValueError: it is not one.
    """
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise refusal("a file of the run cannot be read", f"{file}: {error}", "JSON", "bring it back") from None
    if not isinstance(content, dict):
        raise refusal(
            "a file of the run cannot be read", f"{file}: {type(content).__name__}", "an object", "bring it back"
        )
    return content


if __name__ == "__main__":
    sys.exit(main())
