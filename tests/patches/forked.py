"""Run pytest in a shadow checkout, in a process forked from one that has imported what the shadow does not replace.

A probe takes a second and the imports before it ten; dozens of probes share them.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from ranks import fork_context, redirect_output
from shadow import shadow_variables

from rft.overlay.commands import REPOSITORY


def run_forked(place: Path, arguments: list[str], timeout: float) -> subprocess.CompletedProcess:
    """`pytest ARGUMENTS` with the OpenRLHF and the rft of the shadow at `place`, and the vLLM of this environment."""
    output = place / "output"
    process = fork_context().Process(target=_pytest_there, args=(place, arguments, output))
    process.start()
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        process.join()
    return subprocess.CompletedProcess(arguments, process.exitcode, output.read_text(errors="replace"))


def _pytest_there(place: Path, arguments: list[str], output: Path) -> None:
    redirect_output(output)
    environment = shadow_variables()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(place)
    (site,) = place.glob(".venv/lib/*/site-packages")
    tests = str(REPOSITORY / "tests")
    foreign = [path for path in sys.path if path in ("", str(REPOSITORY)) or path.startswith(tests)]
    sys.path[:] = [str(place), str(site), *(path for path in sys.path if path not in foreign)]
    sys.executable = str(place / ".venv/bin/python")
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name.split(".")[0] in ("rft", "openrlhf") or file.startswith(tests):
            del sys.modules[name]
    sys.path_importer_cache.clear()

    import openrlhf
    import pytest

    import rft

    assert {Path(module.__file__).is_relative_to(place) for module in (openrlhf, rft)} == {True}
    started = time.monotonic()
    status = pytest.main(arguments)
    print(f"{time.monotonic() - started:.1f} s")
    sys.exit(int(status))
