"""A second release of the toy package alpha, and rebases to it."""

from __future__ import annotations

import shutil
from pathlib import Path

from overlay_toy import ALPHA, World, edited, git, load, make_wheel, unpack

NAMES = ("one", "two-things")
MOVED = {"alpha/core.py": b"# a line more\n" + ALPHA["alpha/core.py"]}
HAS_ONE = {
    "alpha/core.py": ALPHA["alpha/core.py"].replace(b"second(x):\n    y = x\n", b"second(x):\n    y = x + 1\n"),
    "alpha/crlf.py": b"A = 1\r\nB = 20\r\nC = 3\r\n",
}
CONFLICT = {"alpha/core.py": ALPHA["alpha/core.py"].replace(b"'old'", b"'upstream'")}


def release(folder: Path, changed: dict[str, bytes | None], version: str = "1.3") -> Path:
    """A wheel of alpha with `changed` files; None: without it."""
    files = {path: data for path, data in (ALPHA | changed).items() if data is not None}
    return make_wheel(folder / "releases", "alpha", version, files)


def both(world: World, wheel: Path) -> list[str]:
    """The new wheel, and the old one, which is not asked of an index here."""
    return ["--wheel", str(wheel), "--wheel", str(world.wheels / "alpha-1.2-py3-none-any.whl")]


def work(world: World) -> Path:
    """Where a rebase to 1.3 works."""
    return world.patches.parent / ".cache/rebase/alpha-1.3"


def report(world: World, *words: str, version: str = "1.3") -> tuple[int, dict]:
    """Exit status and document of `rebase alpha VERSION`."""
    code, out, err = world.run("rebase", "alpha", version, "--json", *words)
    assert out, err
    return code, load(out)


def statuses(document: dict) -> dict[str, str]:
    return {row["patch"].removesuffix(".patch"): row["status"] for row in document["patches"]}


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def install(world: World, wheel: Path) -> None:
    """Another release of alpha in the place of the installed one."""
    for folder in (world.site / "alpha", *world.site.glob("alpha-*.dist-info")):
        shutil.rmtree(folder)
    unpack(world.python, wheel)


def amend(world: World, folder: Path, number: int, old: str, new: str, path: str = "") -> None:
    """Through `edit` and `finish`: `old` becomes `new` in a file or the header of a patch of the installed series."""
    assert world.run("edit", "alpha", "--dir", str(folder))[0] == 0
    rest = git(folder, "rev-list", "--reverse", "base..HEAD").split()
    git(folder, "reset", "-q", "--hard", rest[number])
    message = git(folder, "log", "-1", "--format=%B")
    if path:
        (folder / path).write_text(edited((folder / path).read_bytes(), old.encode(), new.encode()).decode())
    git(folder, "commit", "-q", "-a", "--amend", "-F", "-", text=message if path else message.replace(old, new))
    for commit in rest[number + 1 :]:
        git(folder, "cherry-pick", commit)
    code, _, err = world.run("finish", str(folder))
    assert code == 0, err
