"""Our modules and what each imports, read from the sources without running them."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def modules() -> dict[str, Path]:
    """Every module of ours by its name; a package is its `__init__`."""
    files = [
        file
        for top in ("rft", "agents", "benchmarks", "data", "eval", "rewards")
        for file in ROOT.glob(f"{top}/**/*.py")
    ]
    names = {file: file.relative_to(ROOT).with_suffix("").parts for file in files}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): file for file, parts in names.items()}


MODULES = modules()
UNRUN = "TYPE_CHECKING"


def imports(name: str, types: bool = True) -> set[str]:
    """What a module imports anywhere in it: our modules by their full names, others by the first part of theirs.

    Without `types` what stands under `if TYPE_CHECKING:` is left out: it is never run.
    """
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    found, tree = set(), ast.parse(MODULES[name].read_text())
    if not types:
        tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == UNRUN)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            both = {f"{base}.{alias.name}" for alias in node.names}
            found |= {full if full in MODULES else base for full in both}
    return {each if each in MODULES else each.partition(".")[0] for each in found}
