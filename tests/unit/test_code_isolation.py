"""Isolation, claim by claim: a program inside a sandbox tries it, as root's sandbox and as an ordinary user's."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ordinary_user import command, has_namespaces
from sandbox_claims import CLAIMS, DEATHS

ROOT = Path(__file__).parents[2]
LEVELS = ("namespaces", "landlock")


@pytest.fixture(
    scope="module", params=[f"{level}, {user}" for level in LEVELS for user in ("this user", "another user")]
)
def found(request, tmp_path_factory):
    """The level, and what came back from every program."""
    level, user = request.param.split(", ")
    folder = tmp_path_factory.mktemp("server")
    secret = folder / "secret"
    secret.write_text("of the server")
    mode = secret.stat().st_mode
    if level == "namespaces" and not has_namespaces():
        pytest.skip("this machine forbids user namespaces")
    argv = [sys.executable, str(ROOT / "tests/unit/sandbox_claims.py"), level, str(secret)]
    if user == "another user":
        if os.geteuid():
            pytest.skip("only root can become another user")
        argv = command(*argv[1:], owns=folder)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    run = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    assert (secret.read_text(), secret.stat().st_mode) == ("of the server", mode)
    return level, json.loads(run.stdout)


@pytest.mark.parametrize("name", CLAIMS)
def test_a_program_cannot(name, found):
    level, answers = found
    wanted = CLAIMS[name][1]
    wanted = wanted if isinstance(wanted, str) else wanted[LEVELS.index(level)]
    assert re.fullmatch(wanted, answers[name]), answers[name]


@pytest.mark.parametrize("name", DEATHS)
def test_a_program_dies_of(name, found):
    _, machine, cause = DEATHS[name]
    if machine not in (None, os.uname().machine):
        pytest.skip(f"system calls of {machine}")
    assert found[1][name] == f"Died: {cause}"
