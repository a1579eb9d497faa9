"""rebase: what becomes of each patch on a newer release, conflicts and how they are settled, and several series."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from overlay_toy import ALPHA, HEADER, UV, commit, edited, git, unpack
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from rebase_toy import CONFLICT, HAS_ONE, MOVED, NAMES, both, release, report, statuses, tree, work

from rft.overlay.diff import parse_patch
from rft.overlay.merge import markers, merge_file, merge_patch, their_side
from rft.overlay.versions import order, satisfies

STATES = {
    "as it was": ({}, ["clean", "clean"]),
    "lines above": (MOVED, ["moved", "moved"]),
    "upstream has the first": (HAS_ONE, ["already upstream", "clean"]),
    "another file": ({"alpha/more.py": b"MORE = 1\n", "alpha/data.json": b"[]\n"}, ["clean", "clean"]),
}


@pytest.mark.parametrize("changed, wanted", STATES.values(), ids=STATES)
def test_states_of_a_series_without_conflicts(world, tmp_path, changed, wanted):
    """The new series applies to the new release, and gives what the old one gave, with upstream's changes."""
    before = tree(world.patches)
    wheel = release(tmp_path, changed)
    code, document = report(world, *both(world, wheel))
    assert code == 0 and statuses(document) == dict(zip(NAMES, wanted, strict=True))
    after = tree(world.patches)
    assert {path: after[path] for path in before if path != "README.md"} == {
        path: data for path, data in before.items() if path != "README.md"
    }
    assert not work(world).exists()
    kept = [f"{name}.patch" for name, status in zip(NAMES, wanted, strict=True) if status != "already upstream"]
    assert after["alpha-1.3/series"].decode().split() == kept
    assert "alpha-1.3" in after["README.md"].decode()
    shutil.rmtree(world.site / "alpha")
    shutil.rmtree(world.site / "alpha-1.2.dist-info")
    unpack(world.python, wheel)
    assert world.run("apply")[0] == 0
    core = (world.site / "alpha/core.py").read_bytes()
    assert core.endswith(b"def second(x):\n    y = x + 1\n    return y\n\n\nVALUE = 'new'\n")
    assert core.startswith(changed.get("alpha/core.py", ALPHA["alpha/core.py"])[:14])
    assert not (world.site / "alpha/old.py").exists() and (world.site / "alpha/fresh/more.py").exists()
    code, out, _ = world.run("check")
    assert code == 0 and "alpha-1.2: not applied, 1.2 is not installed here" in out
    assert world.run("revert")[0] == 0 and (world.site / "alpha/core.py").read_bytes() != core


def test_check_writes_nothing(world, tmp_path):
    wheel = release(tmp_path, CONFLICT)
    before = tree(world.patches.parent)
    code, document = report(world, "--check", *both(world, wheel))
    assert code == 1 and statuses(document) == {"one": "clean", "two-things": "conflict"}
    assert document["conflict_hunks"] == 1 and document["patches"][1]["conflicts"] == {"alpha/core.py": 1}
    code, out, _ = world.run("rebase", "alpha", "1.3", "--check", *both(world, release(tmp_path, MOVED)))
    assert code == 0 and out == f"alpha-1.2 -> alpha-1.3: 2 moved\n  {'moved':<17}one, two-things\n"
    assert tree(world.patches.parent) == before


def test_a_conflict_is_edited_then_continued_then_remembered(world, tmp_path):
    wheel = release(tmp_path, CONFLICT)
    code, out, _ = world.run("rebase", "alpha", "1.3", *both(world, wheel))
    assert (
        code == 1
        and "two-things" in out
        and f"In {work(world)}" in out
        and f"rebase alpha 1.3 --patches {world.patches} --continue\n" in out
    )
    core = work(world) / "alpha/core.py"
    assert b"<<<<<<< upstream\nVALUE = 'upstream'\n" in core.read_bytes()
    assert not (world.patches / "alpha-1.3").exists()
    code, _, err = world.run("rebase", "alpha", "1.3", *both(world, wheel))
    assert code == 2 and "under way" in err and "--continue" in err
    code, _, err = world.run("rebase", "alpha", "1.3", "--continue")
    assert code == 1 and "alpha/core.py has conflict markers at lines" in err
    core.write_bytes(their_side(core.read_bytes()).replace(b"'new'", b"('new'"))
    code, _, err = world.run("rebase", "alpha", "1.3", "--continue")
    assert code == 1 and "does not compile" in err
    core.write_bytes(core.read_bytes().replace(b"('new'", b"'ours'"))
    code, document = report(world, "--continue")
    assert code == 0 and statuses(document) == {"one": "clean", "two-things": "resolved"}
    assert "+VALUE = 'ours'" in (world.patches / "alpha-1.3/two-things.patch").read_text()
    first = tree(world.patches)
    code, document = report(world, *both(world, wheel))  # once more: as it was settled
    assert code == 0 and statuses(document)["two-things"] == "resolved" and tree(world.patches) == first
    code, _, err = world.run("rebase", "alpha", "1.3", "--continue")
    assert code == 2 and "no rebase is under way" in err


def test_a_patch_settled_as_upstream_has_it_is_dropped(world, tmp_path):
    wheel = release(tmp_path, CONFLICT)
    assert report(world, *both(world, wheel))[0] == 1
    git(work(world), "reset", "-q", "--hard")
    git(work(world), "clean", "-qfd")
    code, document = report(world, "--continue")
    assert code == 0 and statuses(document) == {"one": "clean", "two-things": "empty"}
    assert (world.patches / "alpha-1.3/series").read_text() == "one.patch\n"
    code, document = report(world, *both(world, wheel))
    assert code == 0 and statuses(document)["two-things"] == "empty"


def test_a_conflict_may_be_committed_by_hand(world, tmp_path):
    assert report(world, *both(world, release(tmp_path, CONFLICT)))[0] == 1
    core = work(world) / "alpha/core.py"
    core.write_bytes(their_side(core.read_bytes()))
    git(work(world), "add", "-A")
    git(work(world), "commit", "-q", "-F", ".git/rft-message")
    code, document = report(world, "--continue")
    assert code == 0 and statuses(document) == {"one": "clean", "two-things": "resolved"}


def test_code_that_has_moved_to_another_file(world, tmp_path):
    """Its hunk is left as FILE.rej, and the report says where its lines are now."""
    wheel = release(tmp_path, {"alpha/core.py": None, "alpha/kernel.py": ALPHA["alpha/core.py"]})
    code, document = report(world, *both(world, wheel))
    (row,) = document["patches"]
    assert code == 1 and row["notes"]["alpha/core.py"] == (
        "the file is gone, and most of its lines are in alpha/kernel.py"
    )
    rejected = work(world) / "alpha/core.py.rej"
    assert b"+    y = x + 1\n" in rejected.read_bytes() and b"crlf.py" not in rejected.read_bytes()
    assert (work(world) / "alpha/crlf.py").read_bytes() == b"A = 1\r\nB = 20\r\nC = 3\r\n"
    kernel = work(world) / "alpha/kernel.py"
    kernel.write_bytes(edited(kernel.read_bytes(), b"    y = x\n", b"    y = x + 1\n"))
    code, _, err = world.run("rebase", "alpha", "1.3", "--continue")
    assert code == 1 and "alpha/core.py.rej is still there" in err
    rejected.unlink()
    code, document = report(world, "--continue")  # the second patch changes the file as well
    assert code == 1 and statuses(document) == {"one": "resolved", "two-things": "conflict"}
    (work(world) / "alpha/core.py.rej").unlink()
    assert report(world, "--continue")[0] == 0
    assert "alpha/kernel.py" in (world.patches / "alpha-1.3/one.patch").read_text()


def test_what_a_series_has_of_its_own_survives_the_next_rebase(world, tmp_path):
    """A patch changed by hand, one that the new series alone has, and one that the old series has got since."""
    wheel = release(tmp_path, MOVED)
    assert report(world, *both(world, wheel))[0] == 0
    for version, files, subject in (
        ("1.3", {"alpha/own.py": b"OWN = 1\n"}, "own"),
        ("1.2", {"alpha/later.py": b"LATER = 1\n"}, "later"),
    ):
        folder = tmp_path / f"edit-{version}"
        if version == "1.3":
            shutil.rmtree(world.site / "alpha-1.2.dist-info")
            unpack(world.python, wheel)
        else:
            shutil.rmtree(world.site / "alpha-1.3.dist-info")
            unpack(world.python, world.wheels / "alpha-1.2-py3-none-any.whl")
        assert world.run("edit", "alpha", "--dir", str(folder))[0] == 0
        if version == "1.3":
            fresh = folder / "alpha/fresh/more.py"
            fresh.write_bytes(b"FRESH = 3\n")
            git(folder, "commit", "-qa", "--amend", "--no-edit")
        commit(folder, files, HEADER.format(subject=subject))
        assert world.run("finish", str(folder))[0] == 0
    out = world.run("check")[1]
    assert "alpha-1.2 has changed since it was carried here: .venv/bin/python -m rft.overlay rebase alpha 1.3" in out
    code, document = report(world, *both(world, wheel))
    assert code == 0
    assert statuses(document) == {"one": "moved", "two-things": "edited", "later": "clean", "own": "own"}
    series = (world.patches / "alpha-1.3/series").read_text().split()
    assert series == ["one.patch", "two-things.patch", "later.patch", "own.patch"]
    assert "+FRESH = 3" in (world.patches / "alpha-1.3/two-things.patch").read_text()
    assert "has changed since" not in world.run("check")[1]
    kept = tree(world.patches)
    assert statuses(report(world, *both(world, wheel))[1]) == statuses(document)  # the one before has told of it
    assert tree(world.patches) == kept


def test_a_patch_taken_out_by_hand_is_not_brought_back(world, tmp_path):
    """As one whose Remove-When has come true."""
    wheel, folder = release(tmp_path, MOVED), tmp_path / "edit"
    assert report(world, *both(world, wheel))[0] == 0
    shutil.rmtree(world.site / "alpha-1.2.dist-info")
    unpack(world.python, wheel)
    assert world.run("edit", "alpha", "--dir", str(folder))[0] == 0
    git(folder, "reset", "-q", "--hard", "HEAD~1")
    assert world.run("finish", str(folder))[0] == 0
    code, document = report(world, *both(world, wheel))
    assert code == 0 and statuses(document) == {"one": "moved", "two-things": "empty"}
    assert (world.patches / "alpha-1.3/series").read_text() == "one.patch\n"


def test_the_installed_version_picks_the_series_and_others_are_refused_by_name(world, tmp_path):
    wheel = release(tmp_path, MOVED)
    assert report(world, *both(world, wheel))[0] == 0
    assert world.states() == {"alpha": "CLEAN", "beta": "CLEAN"}
    assert world.run("apply")[0] == 0 and world.snapshot() == world.patched
    assert world.run("verify")[0] == world.run("repair")[0] == 0
    out = world.run("status")[1]
    assert "alpha-1.2 (alpha 1.2)  APPLIED" in out and "alpha-1.3" not in out
    assert world.run("revert")[0] == 0
    shutil.rmtree(world.site / "alpha-1.2.dist-info")
    unpack(world.python, release(tmp_path, {}, "1.4"))
    for command in ("apply", "revert", "repair"):
        code, _, err = world.run(command)
        assert code == 3 and "alpha 1.4, wanted 1.2 or 1.3" in err and "alpha 1.2 or 1.3 in" in err
    assert "WRONG_VERSION  2 patches, 6 files  alpha 1.4, wanted 1.2 or 1.3" in world.run("status")[1]


@pytest.mark.skipif(UV is None, reason="no uv on PATH or in .tools (set-up installs one)")
def test_releases_come_from_the_package_index(world, tmp_path, monkeypatch):
    """Also the newest one, where no version is given; what is not to be had is one message."""
    wheel = release(tmp_path, MOVED)
    shutil.copy(world.wheels / "alpha-1.2-py3-none-any.whl", wheel.parent)
    shutil.rmtree(world.site / "alpha")  # so that upstream's bytes are not here either
    for name, value in {"UV_FIND_LINKS": wheel.parent, "UV_NO_INDEX": "1", "UV_CACHE_DIR": tmp_path / "c"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PATH", f"{os.path.dirname(UV)}{os.pathsep}{os.environ['PATH']}")
    code, out, _ = world.run("rebase", "alpha", "--check")
    assert code == 0 and out.startswith("alpha-1.2 -> alpha-1.3: 2 moved")
    assert report(world)[0] == 0
    code, _, err = world.run("rebase", "alpha", "9.9", "--check")
    assert code == 3 and "alpha==9.9 is not to be had" in err and "--wheel FILE" in err


def test_removal_that_is_due_is_said(world, tmp_path):
    code, document = report(world, "--check", *both(world, release(tmp_path, {}, "2.0")), version="2.0")
    assert code == 0 and {row["remove_when"] for row in document["patches"]} == {"alpha>=2 [toy]"}


def test_a_series_that_upstream_has_whole_is_not_written(world, tmp_path):
    (world.patches / "beta-0.5").rename(tmp_path / "aside")
    unpatched = {p: d for p, d in world.patched.items() if p.startswith("alpha/")}
    gone = dict.fromkeys(ALPHA.keys() - unpatched.keys())
    code, _, err = world.run("rebase", "alpha", "1.3", *both(world, release(tmp_path, unpatched | gone)))
    assert code == 1 and "alpha-1.3 needs none of the patches of alpha-1.2" in err
    assert not (world.patches / "alpha-1.3").exists()


LIST = b"x = [\n    1,\n    2,\n    3,\n    4,\n    5,\n    6,\n]\n"
DIFF = b"""diff --git a/alpha/x.py b/alpha/x.py
--- a/alpha/x.py
+++ b/alpha/x.py
@@ -1,3 +1,3 @@
-x = [
+x = tuple([
     1,
     2,
@@ -6,3 +6,3 @@ x = [
     5,
     6,
-]
+])
"""


def test_a_merge_that_is_no_python_is_a_conflict():
    split = LIST.replace(b"    3,\n    4,\n", b"    3,\n]\ny = [\n    4,\n")
    merged = merge_patch(
        parse_patch(DIFF, "p"), {"alpha/x.py": LIST}, {"alpha/x.py": split}, {"alpha/x.py": split}, "p"
    )
    assert merged.status == "conflict" and "does not compile" in merged.notes["alpha/x.py"]
    assert not markers(merged.files["alpha/x.py"])


def test_empty_is_what_an_earlier_patch_has_made_and_not_upstream():
    before, after = {"alpha/x.py": LIST}, {"alpha/x.py": LIST.replace(b"[", b"tuple([").replace(b"]", b"])")}
    assert merge_patch(parse_patch(DIFF, "p"), before, after, before, "p").status == "empty"
    assert merge_patch(parse_patch(DIFF, "p"), before, after, after, "p").status == "already upstream"
    assert merge_patch(parse_patch(DIFF, "p"), before, before, before, "p").status == "clean"


@pytest.mark.parametrize(
    "base, ours, theirs, wanted",
    [
        (None, b"a", b"b", 1),  # both create the file
        (None, b"a", b"a", 0),
        (b"a", None, b"b", 1),
        (b"a", None, None, 0),
        (b"a", b"b", None, 1),
        (b"a\r\nb\r\n", b"a\r\nb\r\nc\r\n", b"0\r\na\r\nb\r\n", 0),
    ],
)
def test_files_that_come_or_go_on_one_side(base, ours, theirs, wanted):
    merged, hunks, note = merge_file(base, ours, theirs, "p")
    assert hunks == wanted and bool(note) == (wanted == 1 and base is not None)
    if base and base.endswith(b"\r\n"):
        assert merged == b"0\r\na\r\nb\r\nc\r\n"


def test_versions_are_ordered_as_packaging_orders_them():
    versions = ["0.9.3", "0.9.10", "0.10.1", "0.10.1.post1", "0.11.0", "0.11.0rc1", "1.0", "1.0.0", "2"]
    for left in versions:
        for right in versions:
            assert (order(left) < order(right)) == (Version(left) < Version(right)), (left, right)
        for text in (">=0.10.1", "<0.10,>=0.9.4", "==0.9.*", "!=0.9.*", "~=0.9.3", "==1.0", ">0.9.3,<=0.11.0"):
            assert satisfies(left, text) == SpecifierSet(text, prereleases=True).contains(left), (left, text)


def test_the_report_beside_the_series_is_the_one_printed(world, tmp_path):
    _, document = report(world, *both(world, release(tmp_path, MOVED)))
    kept = json.loads((world.patches / "alpha-1.3/rebase.json").read_text())
    assert kept["from"] == "alpha-1.2" and kept["patches"] == document["patches"]
    assert "Carried from alpha-1.2: 2 moved." in (world.patches / "README.md").read_text()
