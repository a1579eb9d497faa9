"""Every command that README and docs show: its script is there, its --help works, and it takes the options shown."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
# docs/extending.md makes the files that it names; tests/shell/test_extending.py follows it.
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").glob("*.md") if page.stem != "extending")]
PYTHON = ".venv/bin/python"
HANDS_ON = "benchmarks.whole_loop"  # gives options that it does not know to the trainer

# For each [target, word] on stdin: exit status and text of `target --help`, or of `target word --help` where the word
# is one of its subcommands. All in one process, so that torch is loaded once.
HELP = """
import contextlib, io, json, re, runpy, sys

def run(target, *arguments):
    sys.argv, text = [target[-1], *arguments], io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            if target[0] == "-m":
                runpy.run_module(target[1], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(target[0], run_name="__main__")
            status = 0
        except SystemExit as end:
            status = end.code or 0
    return status, text.getvalue()

def help_of(target, word):
    status, text = run(target, "--help")
    subcommands = re.findall("^ +([a-z][a-z-]*)", text, re.MULTILINE)
    return run(target, word, "--help") if word in subcommands else (status, text)

print("help " + json.dumps([help_of(*one) for one in json.load(sys.stdin)]))
"""


class Command(NamedTuple):
    """A command of a page: its words, without the variables before it and the pipes and files behind it."""

    page: str
    variables: tuple[str, ...]  # NAME=value
    words: tuple[str, ...]

    def __str__(self):
        return f"{self.page}: {' '.join(self.words)}"


def commands(page: Path) -> list[Command]:
    """The commands of a page's code blocks and inline code, in order of their kind."""
    block = re.compile(r"^(?: *|\d+\. )```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
    text = page.read_text(encoding="utf-8")
    shell = [code for language, code in block.findall(text) if language in ("", "bash")]
    lines = [line for code in shell for line in code.replace("\\\n", " ").splitlines()]
    for paragraph in re.split(r"\n(?=\n|\||- )", block.sub("", text)):
        lines += [" ".join(span.split()).replace("\\|", "|") for span in re.findall(r"`([^`]+)`", paragraph)]
    return [command for line in lines for command in parts(page.name, line)]


def parts(page: str, line: str) -> list[Command]:
    """The commands of a line, between pipes, `&&` and `;`; brackets around what is optional are left out."""
    line = re.sub(r"\$\([^)]*\)", "400", line.strip())  # $(wc -l < FILE)
    if not re.match(r"([A-Z_]+=\S+ )*(bash|make|python3?|\.venv/bin/\S+) ", line):
        return []
    lexer = shlex.shlex(re.sub(r"[\[\]]", " ", line), posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split = True
    found, words = [], []
    for word in [*lexer, ";"]:
        if not set(word) <= set("|;&<>"):
            words.append(word)
            continue
        variables = []
        while words and re.match(r"[A-Z_]+=", words[0]):
            variables.append(words.pop(0))
        if words[:1] == ["xargs"]:
            words = words[1:]
        if len(words) > 1 and words[0] != "grep":
            found.append(Command(page, tuple(variables), tuple(words)))
        words = []
    return found


SHOWN = [command for page in PAGES for command in commands(page)]
CALLS = [command for command in SHOWN if command.words[0] == PYTHON and "pytest" not in command.words]


def split(command: Command) -> tuple[tuple[str, ...], list[str]]:
    """(`-m MODULE` or `SCRIPT`, its own arguments: those before a lone `--`) of a Python command."""
    end = command.words.index("--") if "--" in command.words else len(command.words)
    start = 3 if command.words[1] == "-m" else 2
    return command.words[1:start], list(command.words[start:end])


def options(words: list[str]) -> list[str]:
    """Names of the long options among the words."""
    return [word.partition("=")[0] for word in words if re.match(r"--\w", word)]


def launches() -> list[tuple[str, Command]]:
    """Each command that starts a launcher, or hands one to a rehearsal, with the launcher's path."""
    found = []
    for command in SHOWN:
        words = command.words
        if words[0] == PYTHON and "--" in words:
            words = ("bash", *words[words.index("--") + 1 :])
        launcher = words[1] if words[0] == "bash" and words[1:] else ""
        if re.fullmatch(r"launch/train_\w+\.sh", launcher):
            found.append((launcher, command._replace(words=words)))
    return found


def refusal(launcher: str, more: list[str], place: Path) -> str:
    """What the trainer's parser says against a launcher's command with these options; empty if it takes them."""
    environment = os.environ | {"RFT_STACK": "cpu", "DRY_RUN": "1", "RUN_DIR": str(place), "PYTHONPATH": str(ROOT)}
    dry = ["bash", ROOT / launcher, *more]
    printed = subprocess.run(dry, env=environment, cwd=ROOT, capture_output=True, text=True)
    if printed.returncode:
        return printed.stderr
    (line,) = (line for line in printed.stdout.splitlines() if " openrlhf.cli.train_" in line)
    check = [sys.executable, "-m", "rft.runs.preflight", "--run-dir", place, "--", *shlex.split(line)]
    checked = subprocess.run(check, env=environment, cwd=ROOT, capture_output=True, text=True)
    # 1 is a no-go, as on a machine without the model and GPUs; it has read the command then.
    return "" if checked.returncode in (0, 1) else checked.stderr


def test_what_is_read_is_what_is_shown():
    for page in PAGES:
        shown = len(re.findall(r"\.venv/bin/python (-m|\w+/)", page.read_text(encoding="utf-8")))
        read = sum(command.page == page.name and command.words[0] == PYTHON for command in SHOWN)
        assert read == shown, page.name
    assert {launcher for launcher, _ in launches()} >= {"launch/train_grpo_tiny.sh", "launch/train_grpo_20b.sh"}


def test_what_commands_name_is_there():
    """Scripts, tests, programs of .venv, targets of make. A bare `python` is another one than ours."""
    faults = []
    for command in SHOWN:
        first, *words = command.words
        # What is below runs/ is the reader's own.
        files = [word for word in words if re.fullmatch(r"(?!runs/)\w+/[\w/]+\.(py|sh)", word)]
        files += words[:1] if first == "bash" and words[0] != "-c" else []
        there = all((ROOT / file).is_file() for file in files)
        if first == "make":
            there = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, check=False).returncode == 0
        elif first.startswith(".venv/bin/"):
            there = there and Path(sys.executable).with_name(Path(first).name).exists()
        if not there or re.fullmatch(r"python[\d.]*", first):
            faults.append(str(command))
    assert faults == []


def patching() -> list[Command]:
    """Calls of apply_patches.sh as what it calls; without a command it applies."""
    calls = [command for command in SHOWN if command.words[:2] == ("bash", "apply_patches.sh")]
    more = [("apply",) if not call.words[2:] or call.words[2].startswith("-") else () for call in calls]
    return [
        call._replace(words=(PYTHON, "-m", "rft.overlay", *name, *call.words[2:]))
        for call, name in zip(calls, more, strict=True)
    ]


def test_python_commands_take_the_options_shown(tmp_path):
    calls = [(command, *split(command)) for command in [*CALLS, *patching()]]
    asked = sorted({(target, arguments[0] if arguments else "") for _, target, arguments in calls})
    done = subprocess.run(
        [sys.executable, "-c", HELP],
        input=json.dumps(asked),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("help "))
    helps = dict(zip(asked, json.loads(line.removeprefix("help ")), strict=True))
    faults, handed_on = [], []
    for command, target, arguments in calls:
        status, text = helps[target, arguments[0] if arguments else ""]
        unknown = [name for name in options(arguments) if not re.search(re.escape(name) + r"(?![\w-])", text)]
        if target[-1] == HANDS_ON and unknown:
            handed_on += arguments[arguments.index(unknown[0]) :]
        elif status or ("usage" in text and unknown):
            faults.append(f"{command}: --help ends with {status}; not in it: {unknown}")
    assert faults == []
    assert handed_on and refusal("launch/train_grpo_tiny.sh", handed_on, tmp_path / "run") == ""


def test_launchers_take_the_options_shown(tmp_path):
    for launcher in sorted({launcher for launcher, _ in launches()}):
        # Of all its commands together, so that the parser runs once; the last of an option counts.
        more = [word for name, command in launches() if name == launcher for word in command.words[2:]]
        assert refusal(launcher, more, tmp_path / "run") == ""


def test_launchers_read_the_variables_shown():
    text = "".join(path.read_text() for path in (ROOT / "launch").rglob("*") if path.suffix in (".sh", ".env"))
    shown = {variable.partition("=")[0] for _, command in launches() for variable in command.variables}
    assert shown >= {"RUN_DIR", "DRY_RUN"}
    assert [name for name in sorted(shown) if not re.search(rf"(\$\{{?|\bflag ){name}\b", text)] == []


def test_spare_knows_its_commands():
    text = (ROOT / "launch/spare.sh").read_text()
    shown = {command.words[2] for command in SHOWN if command.words[:2] == ("bash", "launch/spare.sh")}
    assert shown and [name for name in sorted(shown) if not re.search(rf"^\s*{name}\b.*\)", text, re.MULTILINE)] == []


def test_the_schedule_of_the_documentation_passes():
    (command,) = {command for command in SHOWN if "preflight_lr.sh" in command.words}
    environment = os.environ | dict(variable.split("=", 1) for variable in command.variables)
    done = subprocess.run(command.words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
