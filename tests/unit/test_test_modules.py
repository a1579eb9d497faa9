"""What holds for the test files themselves."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def imported(file: Path) -> set[str]:
    """First parts of the names of modules that a file imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_no_test_imports_another_test():
    files = list(TESTS.rglob("*.py"))
    tests = {file.stem for file in files if file.stem.startswith("test_")}
    assert len(tests) > 50
    assert {str(file.relative_to(TESTS)): found for file in files if (found := imported(file) & tests)} == {}


def test_helpers_have_names_of_their_own():
    """Test folders are on one path where files of several are run together: the first of two would be taken by both."""
    helpers = [file.stem for file in TESTS.rglob("*.py") if file.stem != "conftest"]
    assert sorted(helpers) == sorted(set(helpers))


def test_trainers_without_their_constructor_stay_in_one_file():
    """What is made by `object.__new__` has only what the test gives it."""
    made = re.compile(r"object\.__new__\(\w*(Trainer|ModelActor)")
    found = {file.name for file in TESTS.rglob("*.py") if made.search(file.read_text())}
    assert found == {"test_trainer_probes.py"}
