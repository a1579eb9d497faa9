"""Leaving patches out of a series: the files that result, and what has to go with a patch."""

import difflib
import sys
from pathlib import Path

import pytest
from leave_out import leave_out, weave
from shadow import pristine_files

from rft.overlay.commands import examine
from rft.overlay.series import Package, sha256

BASE = "import os\n\n\ndef f(x):\n    return x\n\n\ndef g(x):\n    return os.sep + x\n"


def series(*versions: str) -> Package:
    """A package of one file; patch `pN` leads from one version to the next."""
    patches = {}
    for number, (old, new) in enumerate(zip([BASE, *versions], versions, strict=False), 1):
        body = difflib.unified_diff(old.splitlines(True), new.splitlines(True), "a/toy/m.py", "b/toy/m.py")
        patches[f"p{number}"] = ("diff --git a/toy/m.py b/toy/m.py\n" + "".join(body)).encode()
    return Package(Path("toy-1"), "toy", "1", {}, patches, {})


def without(package: Package, name: str) -> tuple[str, set[str]]:
    tree = leave_out(package, {"toy/m.py": BASE.encode()}, {name})
    return tree.files["toy/m.py"].decode(), set(tree.out)


def test_neighbouring_lines_are_no_conflict():
    first = BASE.replace("import os\n", "import os\nimport json\n")
    second = first.replace("import json\n", "import json\nimport sys\n")
    package = series(first, second)
    assert without(package, "p1") == (BASE.replace("import os\n", "import os\nimport sys\n"), {"p1"})
    assert without(package, "p2") == (first, {"p2"})


def test_a_replaced_line_comes_back():
    first = BASE.replace("return x\n", "return x + 1\n")
    second = first.replace("os.sep", "os.linesep")
    assert without(series(first, second), "p1") == (BASE.replace("os.sep", "os.linesep"), {"p1"})


def test_a_patch_that_changes_the_missing_line_goes_too():
    first = BASE.replace("return x\n", "return x + 1\n")
    second = first.replace("return x + 1\n", "return x + 2\n")
    assert without(series(first, second), "p1") == (BASE, {"p1", "p2"})


def test_a_patch_inside_the_missing_lines_goes_too():
    first = BASE.replace("    return x\n", "    if x:\n        x = 1\n        x = 2\n    return x\n")
    second = first.replace("x = 1\n", "x = 1\n        x = 7\n")
    assert without(series(first, second), "p1") == (BASE, {"p1", "p2"})


def test_a_patch_that_would_be_no_python_goes_too():
    first = BASE.replace("    return x\n", "    if x:\n        x = 1\n    return x\n")
    second = first.replace("x = 1\n", "x = 1\n        x = 7\n")
    assert without(series(first, second), "p1") == (BASE, {"p1", "p2"})


def test_a_patch_that_uses_a_missing_name_goes_too():
    first = BASE.replace("import os\n", "import os\nimport json\n")
    second = first.replace("return x\n", "return json.dumps(x)\n")
    third = second.replace("os.sep", "os.linesep")
    assert without(series(first, second, third), "p1") == (BASE.replace("os.sep", "os.linesep"), {"p1", "p2"})


@pytest.mark.parametrize("inspection", examine(sys.executable).inspections, ids=lambda i: i.package.name)
def test_nothing_left_out_is_the_lock_and_all_left_out_is_upstream(inspection):
    package, pristine = inspection.package, pristine_files(inspection)
    for path, row in package.files.items():
        woven = weave(package, path, pristine[path])
        assert sha256(woven.without(set())) == row["patched"]
        assert sha256(woven.without(set(package.patches))) == row["pristine"]
