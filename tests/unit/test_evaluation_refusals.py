"""Every command of eval/ refuses what it cannot work with before an engine loads: one message, and nothing written."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROBLEM = {"input": [{"role": "user", "content": "1 + 1"}], "label": "2", "id": "a"}
RECORD = {"id": "a", "label": "2", "response": "2", "tokens": 1, "truncated": False, "correct": True}
RESULT = {"model": "m", "kind": "base", "dataset": "p.jsonl", "mode": "greedy_pass@1", "n": 1, "records": [RECORD]}
RESULT |= {"greedy_pass@1": 1.0, "interval95": [0, 1], "samples_per_problem": 1, "metrics": {}, "truncated": 0}
RESULT |= {"mean_tokens": 1, "ungradable": 0}
# What each command needs, in a folder with a checkpoint `model`, problems `p.jsonl`, `other.jsonl`, results `r.json`.
COMMANDS = {
    "eval_baseline_s0": "--model model --dataset p.jsonl",
    "eval_posthoc": "--model base=model --dataset p.jsonl",
    "eval_model_sweep": "--baseline base=model --model same=model --probe other.jsonl --dataset p.jsonl",
    "eval_lm_eval": "--model base=model --preset gsm8k_8shot",
    "eval_report": "r.json",
    "eval_regression_check": "--run . --step 4 --posthoc r.json",
}
NOWHERE = "/proc/none"  # a folder that nobody can make anything in
# Bad values of an option, with what the message names; for each command that has the option.
BAD = {
    "--output": [("folder", "found the folder folder"), ("p.jsonl/x", "found the file"), (f"{NOWHERE}/x", "/proc")],
    "--html": [("folder", "found the folder folder"), ("p.jsonl/x", "found the file"), (f"{NOWHERE}/x", "/proc")],
    "--cache": [("p.jsonl", "found the file"), ("p.jsonl/cache", "found the file"), (NOWHERE, "/proc")],
    "--max-tokens": [("0", "1 or more"), ("-1", "1 or more"), ("9999999", "positions")],
    "--max-prompt-tokens": [("0", "1 or more")],
    "--max-model-len": [("0", "1 or more")],
    "--top-p": [("7", "at most 1"), ("0", "above 0"), ("nan", "above 0")],
    "--temperature": [("-0.5", "0 or more"), ("inf", "0 or more")],
    "--samples": [("0", "1 or more"), ("absent.jsonl", "absent.jsonl")],
    "--tensor-parallel-size": [("0", "1 or more"), ("-2", "1 or more"), ("3", "3")],
    "--lora-rank": [("-1", "0 or more")],
    "--keep": [("0", "1 or more")],
    "--limit": [("0", "1 or more")],
    "--allow": [("-1", "0 or more")],
    "--model": [("x=absent", "no such directory"), ("x=folder", "no config.json"), ("x=cut", "not a complete")],
    "--baseline": [("x=absent", "no such directory"), ("x=cut", "not a complete safetensors file")],
    "--checkpoints": [("absent", "found no adapter below absent")],
    "--dataset": [("absent.jsonl", "found no file absent.jsonl"), ("folder", "found no file folder")],
    "--probe": [("absent.jsonl", "found no file absent.jsonl")],
    "--include": [("absent", "found no folder absent")],
    "--task": [("gsm8k:many", "wanted NAME or NAME:SHOTS")],
    "--system-prompt": [("@absent", "found no file absent")],
    "--agent": [("search", "found 0 of 1 labels of questions that are searched for"), ("other", "invalid choice")],
    "--posthoc": [("absent.json", "found no file absent.json")],
}  # fmt: skip
# Options whose words have another meaning here: the baseline's model has no name, and a report's baseline is a name.
OTHERS = {
    ("eval_baseline_s0", "--model"): [("absent", "no such directory"), ("cut", "not a complete safetensors")],
    ("eval_baseline_s0", "--task"): [("gsm8k", "invalid choice"), ("mbpp", "prepare_code_data.py --out .cache")],
    ("eval_posthoc", "--task"): [("gsm8k", "invalid choice"), ("humaneval", "prepare_code_data.py --out .cache")],
    ("eval_report", "--baseline"): [("absent", "absent")],
    ("eval_report", "--dataset"): [("p.jsonl", "wanted both"), ("absent.jsonl --regrade", "found no file absent")],
    ("eval_regression_check", "--model"): [("absent", "found 0 results")],
    ("eval_regression_check", "--samples"): [("absent.jsonl", "found no samples in absent.jsonl")],
    ("eval_regression_check", "--run"): [("absent", "absent")],
}  # fmt: skip


def options_of(command: str) -> list[str]:
    """The long options in a command's source."""
    text = (ROOT / "eval" / f"{command}.py").read_text()
    found = re.findall(r'add_argument\(\s*"(--[a-z-]+)"', text)
    shared = (ROOT / "rft" / "evals" / "cli.py").read_text()
    for name in re.findall(r"cli\.(add_[a-z_]+)\(", text):
        found += re.findall(r'"(--[a-z-]+)"', shared.split(f"def {name}(")[1].split("\ndef ")[0])
    return found


def cases():
    for command in COMMANDS:
        for option in options_of(command):
            for words, message in OTHERS.get((command, option), BAD.get(option, [])):
                yield pytest.param(command, option, words, message, id=f"{command} {option} {words}")


def run(command: str, words: list[str], monkeypatch, capsys) -> tuple[int, str]:
    """Exit status and standard error of a script of eval/ in this process."""
    monkeypatch.setattr(sys, "argv", [f"{command}.py", *words])
    try:
        status = runpy.run_path(str(ROOT / "eval" / f"{command}.py"), run_name="script")["main"]()
    except SystemExit as exit_:  # argparse's
        status = exit_.code
    return status, capsys.readouterr().err


@pytest.fixture
def place(tmp_path, checkpoint, monkeypatch):
    """The folder of COMMANDS, with an empty folder, and a checkpoint whose weights are cut."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(checkpoint)
    (tmp_path / "folder").mkdir()
    (tmp_path / "cut").mkdir()
    for file in checkpoint.iterdir():
        (tmp_path / "cut" / file.name).write_bytes(
            file.read_bytes()[: 500_000 if file.suffix == ".safetensors" else None]
        )
    for name, text in (("p.jsonl", "1 + 1"), ("other.jsonl", "2 + 2")):
        problem = PROBLEM | {"input": [{"role": "user", "content": text}]}
        (tmp_path / name).write_text(json.dumps(problem) + "\n")
    (tmp_path / "r.json").write_text(json.dumps([RESULT]))
    return tmp_path


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.mark.parametrize(("command", "option", "words", "message"), list(cases()))
def test_bad_values_are_one_message_and_leave_everything_as_it_was(
    command, option, words, message, place, monkeypatch, capsys
):
    (place / "out.json").write_text("of an earlier evaluation")
    before = content(place)
    words = [*COMMANDS[command].split(), f"{option}={words.split()[0]}", *words.split()[1:]]
    if "--output" in options_of(command) and option != "--output":
        words += ["--output", "out.json"]
    status, errors = run(command, words, monkeypatch, capsys)
    told = [line for line in errors.splitlines() if line.startswith(f"{command}")]
    assert status == 2 and len(told) == 1 and message in told[0], errors
    assert "Traceback" not in errors and content(place) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_is_never_a_file_that_is_read(command, place, monkeypatch, capsys):
    options = options_of(command)
    if "--dataset" not in options or "--output" not in options:
        return
    more = "--regrade --dataset p.jsonl" if command == "eval_report" else ""
    words = [*COMMANDS[command].split(), *more.split(), "--output", "folder/../p.jsonl"]
    before = content(place)
    status, errors = run(command, words, monkeypatch, capsys)
    assert status == 2 and "which --dataset reads" in errors and content(place) == before
    words[-1:] = ["x.html", "--html", "x.html"]
    status, errors = run(command, words, monkeypatch, capsys)
    assert status == 2 and "wanted two files" in errors and content(place) == before


def test_every_command_and_every_option_that_takes_a_number_or_a_place_is_in_the_tables():
    assert {path.stem for path in (ROOT / "eval").glob("eval_*.py")} == COMMANDS.keys()
    # Flags, choices, names and any number.
    harmless = {"--mode", "--seed", "--reasoning-effort", "--base", "--serve", "--head-dtype", "--reference", "--chat"}
    harmless |= {
        "--trust-remote-code",
        "--noise-floor",
        "--merge",
        "--merge-output",
        "--stage",
        "--preset",
        "--regrade",
    }
    harmless |= {"--confirm-run-unsafe-code", "--averages", "--step"}
    for command in COMMANDS:
        unknown = {o for o in options_of(command) if (command, o) not in OTHERS} - BAD.keys() - harmless
        assert not unknown, f"{command}: {unknown}"


def test_a_place_to_merge_into_is_looked_at_first(place, monkeypatch, capsys):
    words = [*COMMANDS["eval_posthoc"].split(), "--merge", "bf16", "--merge-output", "p.jsonl"]
    status, errors = run("eval_posthoc", words, monkeypatch, capsys)
    assert status == 2 and "--merge-output: found the file" in errors
