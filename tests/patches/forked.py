"""Run pytest in a checkout, in a process forked from one that has imported what no shadow replaces.

A probe takes a second and the imports before it ten; dozens of probes share them.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ranks import begin_fork, fork_context
from shadow import shadow_variables, site_of

from rft.overlay.commands import REPOSITORY


def run_forked(place: Path, arguments: list[str], timeout: float) -> subprocess.CompletedProcess:
    """`pytest ARGUMENTS` with the OpenRLHF and the rft of the shadow at `place`, and the vLLM of this environment."""
    return _fork(_in_shadow, (place, arguments), shadow_variables(), place / "output", timeout)


def run_forked_here(
    arguments: list[str], environment: dict[str, str], output: Path, timeout: float
) -> subprocess.CompletedProcess:
    """`pytest ARGUMENTS` in this checkout; what it prints goes to the file `output`."""
    return _fork(_in_checkout, (arguments,), os.environ | environment, output, timeout)


def _fork(
    function: Callable, arguments: tuple, environment: dict[str, str], output: Path, timeout: float
) -> subprocess.CompletedProcess:
    process = fork_context().Process(target=_with, args=(environment, output, function, *arguments))
    process.start()
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        process.join()
    return subprocess.CompletedProcess(arguments, process.exitcode, output.read_text(errors="replace"))


def _with(environment: dict[str, str], output: Path, function: Callable, *arguments) -> None:
    begin_fork(output)
    os.environ.clear()  # the server's, as it was when that began
    os.environ.update(environment)
    function(*arguments)


def _in_shadow(place: Path, arguments: list[str]) -> None:
    own, tests = [str(place), str(site_of(place))], str(REPOSITORY / "tests")
    foreign = [path for path in sys.path if path in ("", str(REPOSITORY)) or path.startswith(tests)]
    sys.path[:] = [*own, *(path for path in sys.path if path not in foreign)]
    sys.executable = str(place / ".venv/bin/python")
    _forget("rft", "openrlhf")
    os.chdir(place)

    import openrlhf

    import rft

    assert {Path(module.__file__).is_relative_to(place) for module in (openrlhf, rft)} == {True}
    _pytest(arguments)


def _in_checkout(arguments: list[str]) -> None:
    _forget()
    os.chdir(REPOSITORY)
    _pytest(arguments)


def _pytest(arguments: list[str]) -> None:
    import pytest

    started = time.monotonic()
    status = pytest.main(arguments)
    print(f"{time.monotonic() - started:.1f} s")
    sys.exit(int(status))


def _forget(*packages: str) -> None:
    """Let the modules of these packages, and those of the tests, be imported anew."""
    tests = str(REPOSITORY / "tests")
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name.split(".")[0] in packages or file.startswith(tests):
            del sys.modules[name]
    sys.path_importer_cache.clear()
