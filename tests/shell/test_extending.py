"""The recipes of docs/extending.md, followed by their text alone in a copy of the checkout.

A block is what the sentence before it says: a file to write, lines for a place in one or for its end, or commands.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/extending.md"
RECIPES = {2: "metric", 3: "rule", 4: "launcher", 5: "reward"}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
WRITE = re.compile(r"Write `([^`]+)`:$")
BEHIND = re.compile(r"In `([^`]+)`, behind the line with `([^`]+)`:$")
APPEND = re.compile(r"At the end of `([^`]+)`:$")
# What changes .venv, or starts the stack or its parser.
NEEDS_STACK = re.compile(r"apply_patches|tests/patches|tests/stack|tests/shell -k|diagnose RUN|^RUN_DIR=")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of what git knows and of what is not ignored, with this checkout's .venv."""
    place = tmp_path_factory.mktemp("checkout")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in filter(None, subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    (place / ".venv").symlink_to(ROOT / ".venv")
    return place


def blocks(recipe: int) -> list[tuple[str, str, str]]:
    """(words before it, language, content) of each block of a recipe."""
    text = re.split(r"^## \d\. ", PAGE.read_text(), flags=re.MULTILINE)[recipe]
    found, end = [], 0
    for block in BLOCK.finditer(text):
        found.append((" ".join(text[end : block.start()].split()), block[1], block[2]))
        end = block.end()
    return found


def follow(checkout: Path, said: str, language: str, content: str) -> None:
    if match := WRITE.search(said):
        assert not (checkout / match[1]).exists()
        (checkout / match[1]).write_text(content)
    elif match := BEHIND.search(said):
        insert(checkout / match[1], match[2], content)
    elif match := APPEND.search(said):
        with (checkout / match[1]).open("a") as file:
            file.write("\n\n" + content)
    else:
        assert language == "bash", said
        lines = re.split(r"(?<!\\)\n(?=\.venv|bash|RUN_DIR)", content)
        run(checkout, "\n".join(line for line in lines if not NEEDS_STACK.search(line)))


def insert(file: Path, anchor: str, content: str) -> None:
    """Behind the first line that holds the anchor, as deep as that line."""
    lines = file.read_text().splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if anchor in line)
    depth = re.match(r" *", lines[place])[0]
    lines[place + 1 : place + 1] = [depth + line for line in content.splitlines(keepends=True)]
    file.write_text("".join(lines))


def run(checkout: Path, commands: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(checkout), "RFT_STACK": "cpu", "TMPDIR": str(checkout)}
    script = ["bash", "-euo", "pipefail", "-c", commands]
    done = subprocess.run(script, cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{commands}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


@pytest.mark.parametrize("recipe", RECIPES, ids=RECIPES.values())
def test_a_recipe_can_be_followed(recipe, checkout):
    """In their order: the rule is one on the metric before it."""
    found = blocks(recipe)
    assert len(found) >= 3
    for block in found:
        follow(checkout, *block)
    run(checkout, ".venv/bin/ruff check rft rewards data && .venv/bin/ruff format --check rft rewards data")


def test_the_patch_of_the_recipe_can_be_finished(checkout):
    """In one shell, which keeps the folder's name; it is not applied, for .venv is everybody's."""
    written = [block for block in blocks(1) if WRITE.search(block[0])]
    for block in written:
        follow(checkout, *block)
    commands = "".join(content for said, language, content in blocks(1) if language == "bash")
    run(checkout, "\n".join(line for line in commands.splitlines() if not re.search("apply_patches|pytest", line)))
    assert (checkout / "patches/openrlhf-0.9.3/normalize-under-mask.patch").is_file()
    assert "normalize-under-mask" in (checkout / "patches/README.md").read_text()
