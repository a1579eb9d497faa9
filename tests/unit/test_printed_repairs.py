"""Commands in what our programs print, such as repairs, work when they are pasted from the repository's folder."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from own_modules import MODULES, ROOT

from rft.overlay import installer

SCRIPTS = [*ROOT.glob("launch/*.sh"), ROOT / "apply_patches.sh", ROOT / "preflight_lr.sh"]
# Whoever has no uv on PATH has the one of .tools, and a bare python is another one than ours.
UV = r"uv (?:pip|venv|python|cache)\b"
PIP = r"(?<!uv )(?<!-m )(?<!\{\} )pip3? install\b"
OURS = r"(?:ray start|wandb login)\b|(?:data|eval|benchmarks)/\w+\.py(?= --)"  # of .venv/bin, by .venv/bin/python
BARE = re.compile(rf"(?<![\w./{{}}-])(?<!/python )(?:{UV}|{PIP}|{OURS}|python[\d.]* (?:-m\b|\w+/\w+\.py))")
SCRIPT = re.compile(r"(?<![\w/{}.$-])((?:bash )?(?:\w+/)?\w+\.sh|(?:data|eval|benchmarks)/\w+\.py)\b")
PROGRAM = re.compile(r"\.venv/bin/([\w-]+)")
MODULE = re.compile(r"-m ((?:rft|benchmarks)(?:\.\w+)+)")
TARGET = re.compile(r"\bmake (setup|quick|test|unit|lint|check)\b")
KNOWN = ["uv python install 3.11"]  # launch/setup.sh prints it where uv is on PATH


def literals(file: Path) -> set[str]:
    """Text in a Python file but docstrings; the places of values are {}."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    described = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {
        id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, described) and ast.get_docstring(node)
    }
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.add("".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | parts:
            found.add(node.value)
    return found


def quoted(file: Path) -> set[str]:
    """Text between double quotes in a shell script's lines, but comments."""
    lines = (line for line in file.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#"))
    return {text for line in lines for text in re.findall(r'"((?:[^"\\]|\\.)*)"', line)}


PRINTED = [(file, text) for file in MODULES.values() for text in literals(file)]
PRINTED += [(script, text) for script in SCRIPTS for text in quoted(script)]


def test_no_command_needs_what_may_not_be_on_path():
    assert [text for _, text in PRINTED if BARE.search(text)] == KNOWN


def test_what_printed_commands_name_is_there():
    faults, seen = [], set()
    for file, text in PRINTED:
        for match in SCRIPT.finditer(text):
            seen.add(match[1])
            here = [ROOT / match[1].removeprefix("bash "), file.parent / match[1].removeprefix("bash ")]
            faults += [] if any(place.is_file() for place in here) else [(file.name, match[0])]
        for match in PROGRAM.finditer(text):
            faults += [] if Path(sys.executable).with_name(match[1]).exists() else [(file.name, match[0])]
        for match in MODULE.finditer(text):
            seen.add(match[1])
            faults += [] if match[1] in MODULES or match[1].rpartition(".")[0] in MODULES else [(file.name, match[0])]
        for match in TARGET.finditer(text):
            seen.add(match[0])
            faults += [] if f"\n{match[1]}:" in (ROOT / "Makefile").read_text() else [(file.name, match[0])]
    assert faults == []
    assert seen >= {"bash apply_patches.sh", "make setup", "data/prepare_arithmetic.py", "rft.runs.diagnose"}


@pytest.mark.parametrize("on_path", [True, False])
def test_the_installer_that_repairs_name_runs(monkeypatch, tmp_path, on_path):
    found = shutil.which("uv") if on_path else None
    if not (found or (ROOT / installer.OWN_UV).exists()):
        pytest.skip("no uv here")
    if found:
        (tmp_path / "uv").symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path))
    words = shlex.split(installer.pip_install(sys.executable))
    assert words[0] == ("uv" if found else installer.OWN_UV)
    command = [*words[:2], "list", *words[3:], "--quiet"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_any_uv_pip_is_named(monkeypatch):
    monkeypatch.setattr(installer, "uv", lambda: None)
    assert installer.pip_install("/opt/my env/bin/python") == "'/opt/my env/bin/python' -m pip install"
