"""rebase, once more after the old series has changed: hand work stays, and nothing of the new series is overwritten."""

from __future__ import annotations

import pytest
from overlay_toy import HEADER, commit, edited, git
from rebase_toy import CONFLICT, MOVED, amend, both, install, release, report, statuses, tree, work

from rft.overlay.merge import their_side

CORE = "alpha/core.py"


def settled(world, tmp_path):
    """The wheels, after a rebase whose one conflict was settled with 'ours'."""
    wheels = both(world, release(tmp_path, CONFLICT))
    assert report(world, *wheels)[0] == 1
    core = work(world) / CORE
    core.write_bytes(their_side(core.read_bytes()).replace(b"'new'", b"'ours'"))
    assert report(world, "--continue")[0] == 0
    return wheels


def test_what_was_settled_stays_when_an_earlier_patch_of_the_file_changes(world, tmp_path):
    """Its own text in the old series has other blob ids then, and the same changed lines."""
    wheels = settled(world, tmp_path)
    before = (world.patches / "alpha-1.2/two-things.patch").read_bytes()
    amend(world, tmp_path / "edit", 0, "x + 1", "x + 2", CORE)
    assert (world.patches / "alpha-1.2/two-things.patch").read_bytes() != before
    code, document = report(world, *wheels)
    assert code == 0 and statuses(document) == {"one": "clean", "two-things": "resolved"}
    assert "+    y = x + 2" in (world.patches / "alpha-1.3/one.patch").read_text()
    assert "+VALUE = 'ours'" in (world.patches / "alpha-1.3/two-things.patch").read_text()


def test_a_settled_patch_that_has_changed_stops_and_says_so(world, tmp_path):
    """Also where the plain merge has no conflict, which would take back what was edited."""
    wheel = release(tmp_path, MOVED)
    assert report(world, *both(world, wheel))[0] == 0
    install(world, wheel)
    amend(world, tmp_path / "new", 1, "'new'", "'mine'", CORE)
    install(world, world.wheels / "alpha-1.2-py3-none-any.whl")
    amend(world, tmp_path / "old", 1, "'new'", "'newer'", CORE)
    kept = tree(world.patches)
    for words in (["--check"], []):
        code, document = report(world, *words, *both(world, wheel))
        assert code == 1 and statuses(document) == {"one": "moved", "two-things": "conflict"}
        assert "settled by hand before (edited), and the patch has changed since" in str(document["patches"][1])
    assert tree(world.patches) == kept
    core = work(world) / CORE
    core.write_bytes(edited(core.read_bytes(), b"'newer'", b"'mine and newer'"))
    code, document = report(world, "--continue")
    assert code == 0 and statuses(document)["two-things"] == "resolved"
    assert "+VALUE = 'mine and newer'" in (world.patches / "alpha-1.3/two-things.patch").read_text()


def test_a_header_comes_from_the_old_series_unless_the_new_one_has_edited_it(world, tmp_path):
    wheels = settled(world, tmp_path)
    patch = world.patches / "alpha-1.3/two-things.patch"
    amend(world, tmp_path / "first", 1, "the toy needs it", "said better")
    code, document = report(world, *wheels)
    assert code == 0 and statuses(document)["two-things"] == "resolved"
    assert "Why: said better" in patch.read_text() and "'ours'" in patch.read_text()
    install(world, tmp_path / "releases/alpha-1.3-py3-none-any.whl")
    amend(world, tmp_path / "new", 1, "said better", "of this series")
    install(world, world.wheels / "alpha-1.2-py3-none-any.whl")
    amend(world, tmp_path / "again", 1, "said better", "said once more")
    assert report(world, *wheels)[0] == 0
    assert "Why: of this series" in patch.read_text() and "'ours'" in patch.read_text()


def test_a_folder_as_package_picks_the_source_and_what_is_there_stays(world, tmp_path):
    wheels = settled(world, tmp_path)
    kept = tree(world.patches)
    code, out, err = world.run("rebase", "alpha-1.2", "1.3", *wheels)
    assert code == 0 and "resolved" in out, err
    assert tree(world.patches) == kept


def test_a_series_that_was_not_carried_from_this_one_is_not_overwritten(world, tmp_path):
    """The pin, which no rebase has made, and one that was carried from a series farther away."""
    newest = release(tmp_path, MOVED, "1.4")
    assert report(world, *both(world, newest), version="1.4")[0] == 0
    wheels = [*settled(world, tmp_path), "--wheel", str(newest)]
    kept = tree(world.patches)
    code, _, err = world.run("rebase", "alpha", "1.2", *wheels)
    assert code == 2 and "alpha-1.2 was not carried from alpha-1.3" in err and "no rebase has made it" in err
    for words in (["--check"], []):
        code, _, err = world.run("rebase", "alpha", "1.4", *words, *wheels)
        assert code == 2 and "alpha-1.4 was not carried from alpha-1.3" in err and "rebase alpha-1.2 1.4" in err
    assert tree(world.patches) == kept
    assert world.run("rebase", "alpha-1.2", "1.4", *both(world, newest))[0] == 0 and tree(world.patches) == kept


def test_a_malformed_report_is_one_message(world, tmp_path):
    wheels = settled(world, tmp_path)
    (world.patches / "alpha-1.3/rebase.json").write_text('{"from": "alpha-1.2"')
    for words in (["check"], ["rebase", "alpha", "1.3", "--check", *wheels]):
        code, _, err = world.run(*words)
        assert code == 2 and "rebase.json is malformed" in err and "git checkout -- " in err


def add(world, folder, files, subject):
    """A patch more in the installed series."""
    assert world.run("edit", "alpha", "--dir", str(folder))[0] == 0
    commit(folder, files, HEADER.format(subject=subject))
    assert world.run("finish", str(folder))[0] == 0


def test_a_patch_of_the_new_series_that_the_old_one_comes_to_make_is_dropped(world, tmp_path):
    """Under another name; with the state `own` it was an empty commit, and the rebase could not go on."""
    wheels = settled(world, tmp_path)
    install(world, tmp_path / "releases/alpha-1.3-py3-none-any.whl")
    add(world, tmp_path / "new", {"alpha/more.py": b"MORE = 1\n"}, "mine")
    install(world, world.wheels / "alpha-1.2-py3-none-any.whl")
    add(world, tmp_path / "old", {"alpha/more.py": b"MORE = 1\n"}, "theirs")
    code, document = report(world, *wheels)
    assert code == 0 and document["left"] == 0
    assert statuses(document) == {"one": "clean", "two-things": "resolved", "theirs": "clean", "mine": "empty"}
    kept = tree(world.patches)
    assert (world.patches / "alpha-1.3/series").read_text().split() == ["one.patch", "two-things.patch", "theirs.patch"]
    assert report(world, *wheels)[0] == 0 and "mine" not in statuses(report(world, *wheels)[1])
    del kept["alpha-1.3/rebase.json"], kept["README.md"]
    assert kept.items() <= tree(world.patches).items()


@pytest.mark.parametrize("told", [False, True], ids=["since", "own"])
def test_two_patches_with_one_name_are_refused_by_name(world, tmp_path, told):
    """Whether the last rebase has told of it (own), or it was added since."""
    wheels = settled(world, tmp_path)
    install(world, tmp_path / "releases/alpha-1.3-py3-none-any.whl")
    add(world, tmp_path / "new", {"alpha/more.py": b"MORE = 1\n"}, "same")
    if told:
        assert statuses(report(world, *wheels)[1])["same"] == "own"
    install(world, world.wheels / "alpha-1.2-py3-none-any.whl")
    add(world, tmp_path / "old", {"alpha/other.py": b"OTHER = 1\n"}, "same")
    kept = tree(world.patches)
    code, _, err = world.run("rebase", "alpha", "1.3", *wheels)
    assert code == 1 and "found:  same.patch" in err and "alpha-1.3 and alpha-1.2" in err
    assert tree(world.patches) == kept
    assert world.run("rebase", "alpha", "1.3", "--check", *wheels)[0] == 1


def test_a_patch_that_was_dropped_and_put_back_by_hand_stays(world, tmp_path):
    wheels = both(world, release(tmp_path, MOVED))
    assert report(world, *wheels)[0] == 0
    install(world, tmp_path / "releases/alpha-1.3-py3-none-any.whl")
    folder = tmp_path / "out"
    assert world.run("edit", "alpha", "--dir", str(folder))[0] == 0
    git(folder, "reset", "-q", "--hard", "HEAD~1")
    assert world.run("finish", str(folder))[0] == 0
    assert statuses(report(world, *wheels)[1])["two-things"] == "empty"
    add(world, tmp_path / "back", {"alpha/nonl.py": b"# text\nLAST = 2"}, "Two: things")
    assert "two-things.patch" in (world.patches / "alpha-1.3/series").read_text()
    kept = (world.patches / "alpha-1.3/two-things.patch").read_bytes()
    code, document = report(world, *wheels)
    assert code == 0 and statuses(document) == {"one": "moved", "two-things": "edited"}
    assert (world.patches / "alpha-1.3/two-things.patch").read_bytes() == kept
