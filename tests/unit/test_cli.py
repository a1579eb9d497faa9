"""The command `rft`: every name leads to something that is there."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rft import cli


def rft(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "rft.cli", *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_is_there(name):
    words = cli.COMMANDS[name].words
    if "-m" in words:
        assert find_spec(words[-1])
    elif len(words) > 1:
        assert Path(words[-1]).is_file()


def test_map_names_every_command():
    shown = rft("--help")
    assert shown.returncode == 0
    assert shown.stdout == rft().stdout
    assert all(f"\n  {name} " in shown.stdout for name in cli.COMMANDS)


def test_a_command_takes_its_own_arguments():
    shown = rft("monitor", "--help")
    assert shown.returncode == 0
    assert "rft.runs.monitor" in shown.stdout
    assert rft("monitor", "/nowhere").returncode != 0


@pytest.mark.parametrize(
    ("arguments", "message"), [(["fly"], "found 'fly'"), (["train", "30b"], "found '30b'"), (["train"], "tiny")]
)
def test_unknown_names_are_refused(arguments, message):
    ended = rft(*arguments)
    assert ended.returncode == 2
    assert message in ended.stderr
