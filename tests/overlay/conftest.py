from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from overlay_toy import (
    ALPHA,
    BETA,
    HEADER,
    World,
    base_repository,
    commit,
    copy_world,
    edited,
    make_env,
    make_wheel,
    snapshot,
    unpack,
)

from rft.overlay.cli import main


@pytest.fixture(scope="session")
def fast_tmp(tmp_path_factory) -> Iterator[Path]:
    """A folder in memory where there is one: the overlay syncs every file, which costs milliseconds on a disk."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path_factory.mktemp("overlay")
        return
    with tempfile.TemporaryDirectory(prefix="rft-overlay-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def tmp_path(fast_tmp) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=fast_tmp) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def template(fast_tmp) -> World:
    """Made once: wheels, an environment, and patches written by `finish` from plain git repositories."""
    root = fast_tmp / "template"
    python = make_env(root / "env")
    wheels = [make_wheel(root / "wheels", "alpha", "1.2", ALPHA), make_wheel(root / "wheels", "beta-cpu", "0.5", BETA)]
    for wheel in wheels:
        unpack(python, wheel)
    world = World(python, root / "patches", root / "wheels", snapshot(python), {})
    alpha = base_repository(root / "alpha", ALPHA)
    core = edited(ALPHA["alpha/core.py"], b"    y = x\n", b"    y = x + 1\n")
    commit(
        alpha, {"alpha/core.py": core, "alpha/crlf.py": b"A = 1\r\nB = 20\r\nC = 3\r\n"}, HEADER.format(subject="one")
    )
    two = {
        "alpha/core.py": edited(core, b"'old'", b"'new'"),
        "alpha/nonl.py": b"# text\nLAST = 2",
        "alpha/old.py": None,
        "alpha/fresh/__init__.py": b"",
        "alpha/fresh/more.py": b"FRESH = 1\n",
    }
    commit(alpha, two, HEADER.format(subject="Two: things"))
    beta = base_repository(root / "beta", BETA)
    commit(beta, {"beta/mod.py": b"MODE = 'fixed'\n"}, HEADER.format(subject="beta mode"))
    for folder in (alpha, beta):
        assert main(world.arguments("finish", str(folder))) == 0
    assert main(world.arguments("apply")) == 0
    world.patched = snapshot(python)
    assert main(world.arguments("revert")) == 0
    assert snapshot(python) == world.pristine
    return world


@pytest.fixture
def world(template, tmp_path, capsys) -> World:
    """A private copy of the template, as freshly installed."""
    return copy_world(template, tmp_path / "w", capsys)
