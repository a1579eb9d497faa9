"""rebase, killed at every step, and given wheels that nobody should build on."""

from __future__ import annotations

import io
import zipfile

import pytest
from overlay_toy import ALPHA, base_repository, git, make_wheel
from rebase_toy import CONFLICT, MOVED, both, release, report, statuses, tree, work

from rft.overlay import rebase
from rft.overlay.merge import their_side

STEPS = [("make_repository", 1), *(("_save", n) for n in range(1, 8)), ("commit_patch", 1), ("commit_patch", 2)]
STEPS += [("read_commits", 1), ("write_series", 1)]


class Killed(BaseException):
    pass


def killed(at: int, function, after: bool):
    """`function`, whose call number `at` dies before or after its work."""
    calls = []

    def call(*arguments, **named):
        calls.append(1)
        if len(calls) == at and not after:
            raise Killed
        result = function(*arguments, **named)
        if len(calls) == at:
            raise Killed
        return result

    return call


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name, at", STEPS)
def test_a_kill_at_any_step_is_continued(world, tmp_path, monkeypatch, name, at, after):
    """By --continue, or, where nothing was begun yet, by the command itself; the series is the same."""
    wheels = both(world, release(tmp_path, MOVED))
    assert report(world, *wheels)[0] == 0
    wanted = tree(world.patches)
    for path in (world.patches / "alpha-1.3").iterdir():
        path.unlink()
    (world.patches / "alpha-1.3").rmdir()
    with monkeypatch.context() as patch:
        patch.setattr(rebase, name, killed(at, getattr(rebase, name), after))
        with pytest.raises(Killed):
            world.run("rebase", "alpha", "1.3", *wheels)
    world.capsys.readouterr()  # what the one that was killed has said
    begun = (work(world) / rebase.REBASE).exists()
    code, document = report(world, *(["--continue"] if begun else wheels))
    assert code == 0 and statuses(document) == {"one": "moved", "two-things": "moved"}
    assert tree(world.patches) == wanted and not work(world).exists()


@pytest.mark.parametrize("at", [1, 2])
def test_a_kill_while_a_conflict_is_written(world, tmp_path, monkeypatch, at):
    """Before its state is kept, nobody has edited it: it is written anew."""
    with monkeypatch.context() as patch:
        patch.setattr(rebase, "_leave", killed(1, rebase._leave, after=at == 2))
        with pytest.raises(Killed):
            world.run("rebase", "alpha", "1.3", *both(world, release(tmp_path, CONFLICT)))
    (work(world) / ".git/index.lock").touch()  # as a git that was killed leaves it
    code, document = report(world, "--continue")
    assert code == 1 and statuses(document)["two-things"] == "conflict"
    core = work(world) / "alpha/core.py"
    core.write_bytes(their_side(core.read_bytes()))
    assert report(world, "--continue")[0] == 0


@pytest.mark.parametrize("committed", [False, True], ids=["added", "committed"])
def test_markers_that_git_has_been_given_are_seen(world, tmp_path, committed):
    """As `git add` hides a file from what is modified, and a commit from what differs from HEAD."""
    assert report(world, *both(world, release(tmp_path, CONFLICT)))[0] == 1
    core, folder = work(world) / "alpha/core.py", work(world)
    (folder / "alpha/notes.txt").write_text(core.read_text())  # and in another file
    core.write_bytes(their_side(core.read_bytes()))
    git(folder, "add", "-A")
    if committed:
        git(folder, "commit", "-q", "-F", ".git/rft-message")
    code, _, err = world.run("rebase", "alpha", "1.3", "--continue")
    assert code == 1 and "alpha/notes.txt has conflict markers" in err and ("amend" in err) == committed
    (folder / "alpha/notes.txt").unlink()
    core.write_bytes(b"VALUE = ('new'\n")
    git(folder, "commit" if committed else "add", *(["-qa", "--amend", "--no-edit"] if committed else ["-A"]))
    code, _, err = world.run("rebase", "alpha", "1.3", "--continue")
    assert code == 1 and "alpha/core.py does not compile" in err
    assert not (world.patches / "alpha-1.3").exists()


def test_what_a_commit_by_hand_leaves_out_is_refused(world, tmp_path):
    """It would flow into the next patch."""
    assert report(world, *both(world, release(tmp_path, {"alpha/core.py": None})))[0] == 1
    folder = work(world)
    git(folder, "add", "alpha/crlf.py")
    git(folder, "commit", "-q", "-F", ".git/rft-message")
    code, _, err = world.run("rebase", "alpha", "1.3", "--continue")
    assert code == 1 and "alpha/core.py.rej is still there" in err
    (folder / "alpha/core.py.rej").unlink()
    (folder / "alpha/data.json").write_text("[1]\n")
    code, _, err = world.run("rebase", "alpha", "1.3", "--continue")
    assert code == 1 and "uncommitted work in" in err and "alpha/data.json" in err
    git(folder, "checkout", "-q", "alpha/data.json")
    code, document = report(world, "--continue")
    assert code == 1 and statuses(document) == {"one": "resolved", "two-things": "conflict"}


def test_finish_refuses_the_folder_of_a_rebase(world, tmp_path):
    """Its commits are the patches before the conflict: the rest would be gone from the series."""
    assert report(world, *both(world, release(tmp_path, CONFLICT)))[0] == 1
    git(work(world), "reset", "-q", "--hard")
    git(work(world), "clean", "-qfd")
    kept = tree(world.patches)
    code, _, err = world.run("finish", str(work(world)))
    assert code == 2 and "a rebase is under way" in err and f"PACKAGE 1.3 --dir {work(world)} --continue" in err
    assert tree(world.patches) == kept


def test_changes_that_cancel_out_are_named_and_repaired(world, tmp_path):
    """Settled so that the two patches leave core.py as upstream ships it: git rebase, then the same command again."""
    wheels = both(world, release(tmp_path, CONFLICT))
    assert report(world, *wheels)[0] == 1
    folder = work(world)
    git(folder, "checkout", "-q", "base", "--", "alpha/core.py")
    code, _, err = world.run("rebase", "alpha", "1.3", "--continue")
    assert code == 1 and "the changes to alpha/core.py cancel out" in err and "one.patch, two-things.patch" in err
    assert f"repair: git -C {folder} rebase -i base" in err
    messages = [git(folder, "log", "-1", "--format=%B", name) for name in ("HEAD~1", "HEAD")]
    git(folder, "reset", "-q", "--soft", "base")
    git(folder, "reset", "-q")
    git(folder, "add", "alpha/crlf.py")
    git(folder, "commit", "-q", "-F", "-", text=messages[0])
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-F", "-", text=messages[1])
    code, document = report(world, "--continue")
    assert code == 0 and statuses(document) == {"one": "edited", "two-things": "edited"}
    assert statuses(report(world, *wheels)[1]) == {"one": "edited", "two-things": "edited"}


def test_what_does_not_fit_the_state_is_refused(world, tmp_path):
    """Patches that have changed under way, and commits that are no patch of the series."""
    wheels = both(world, release(tmp_path, CONFLICT))
    assert report(world, *wheels)[0] == 1
    git(work(world), "commit", "-q", "--allow-empty", "-m", "a")
    git(work(world), "commit", "-q", "--allow-empty", "-m", "b")
    code, _, err = world.run("rebase", "alpha", "1.3", "--continue")
    assert code == 1 and "3 commits after the tag base" in err and "rm -r" in err
    folder = tmp_path / "edit"
    assert world.run("edit", "alpha", "--dir", str(folder))[0] == 0
    git(folder, "reset", "-q", "--hard", "HEAD~1")
    assert world.run("finish", str(folder))[0] == 0
    code, _, err = world.run("rebase", "alpha", "1.3", "--continue")
    assert code == 1 and "the patches have changed since" in err
    code, _, err = world.run("rebase", "alpha", "1.2", *wheels)
    assert code == 2 and "alpha-1.2 is for 1.2 itself" in err
    code, _, err = world.run("rebase", "alpha")
    assert code == 2 and "needs a version" in err
    code, _, err = world.run("rebase", "alpha", "1.3", "--check", "--continue")
    assert code == 2 and "one of them" in err


def test_a_folder_of_ones_own_is_in_the_next_command(world, tmp_path):
    """And the rebase in it is continued to its own version alone."""
    folder, wheels = tmp_path / "a folder", both(world, release(tmp_path, CONFLICT))
    code, out, _ = world.run("rebase", "alpha", "1.3", "--dir", str(folder), *wheels)
    command = f"rebase alpha 1.3 --dir '{folder}' --patches {world.patches} --continue"
    assert code == 1 and f"{command}\n" in out
    code, _, err = world.run("rebase", "alpha", "1.3", "--dir", str(folder), *wheels)
    assert code == 2 and command in err
    code, _, err = world.run("rebase", "alpha", "1.4", "--dir", str(folder), "--continue")
    assert code == 2 and "is to another version" in err and "found:  1.3" in err and "wanted: 1.4" in err


def test_a_folder_of_somebody_else_is_left_alone(world, tmp_path):
    mine = tmp_path / "mine"
    (mine / ".git").mkdir(parents=True)
    (mine / "thesis.txt").write_text("years of work")
    wheels = both(world, release(tmp_path, MOVED))
    code, _, err = world.run("rebase", "alpha", "1.3", "--dir", str(mine), *wheels)
    assert code == 2 and "is not empty" in err and (mine / "thesis.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    assert report(world, "--dir", str(tmp_path / "empty"), *wheels)[0] == 0


def rewritten(wheel, change):
    """The wheel with `change(name, data)` -> [(name, data), …] in place of each member."""
    with zipfile.ZipFile(wheel) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in members:
            for member in change(name, data):
                archive.writestr(*member)
    return wheel


def with_more(more, data=b"X = 1\n"):
    return lambda wheel: rewritten(wheel, lambda n, d: [(n, d), (more, data)] if n == "alpha/__init__.py" else [(n, d)])


def with_record(change):
    return lambda wheel: rewritten(wheel, lambda n, d: [(n, change(d) if n.endswith("/RECORD") else d)])


def cut(wheel):
    wheel.write_bytes(wheel.read_bytes()[:-200])
    return wheel


def damaged(wheel):
    """One byte of a member is another one, and the archive's own sum shows it."""
    wheel.write_bytes(wheel.read_bytes().replace(b"VALUE = 'old'", b"VALUE = 'odd'"))
    return wheel


HOSTILE = {
    "a path that leaves": (with_more("alpha/../../escaped.py"), "paths below site-packages"),
    "an absolute path": (with_more("/tmp/rft-escaped.py"), "paths below site-packages"),
    "a member twice": (with_more("alpha/core.py"), "each file once"),
    "a member twice by another folder": (with_more("x.data/purelib/alpha/core.py"), "each file once"),
    "a file that RECORD does not list": (with_more("alpha/extra.py"), "alpha/extra.py is not what its RECORD lists"),
    "another hash": (with_record(lambda d: d.replace(b"alpha/core.py,sha256=", b"alpha/core.py,sha256=A")), "RECORD"),
    "no hashes": (with_record(lambda d: b"alpha/core.py,,\n"), "is not what its RECORD lists"),
    "a RECORD of noise": (with_record(lambda d: b"\xff\xfe,sha256=\x00,1\n"), "a RECORD that cannot be read"),
    "no RECORD": (lambda w: rewritten(w, lambda n, d: [] if n.endswith("/RECORD") else [(n, d)]), "0 RECORD"),
    "two METADATA": (with_more("beta-1.dist-info/METADATA"), "2 METADATA"),
    "a wheel that is cut short": (cut, "is not a wheel"),
    "a damaged member": (damaged, "Bad CRC-32"),
}


@pytest.mark.parametrize("hostile, message", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_hostile_wheel_is_one_message_and_writes_nothing(world, tmp_path, hostile, message):
    wheel = hostile(release(tmp_path, {}))
    before = tree(tmp_path)
    for more in ([], ["--check"]):
        code, _, err = world.run("rebase", "alpha", "1.3", *more, *both(world, wheel))
        assert code in (2, 3) and err.startswith("error: ") and message in err
    assert tree(tmp_path) == before


def test_a_wheel_of_something_else(world, tmp_path):
    """Its name says alpha 1.3, its content another version, another distribution, or no such package."""
    for name, version, files in (("alpha", "1.4", ALPHA), ("gamma", "1.3", ALPHA), ("alpha", "1.3", {"b.py": b""})):
        made = make_wheel(tmp_path / f"{name}{version}{len(files)}", name, version, files)
        wheel = made.rename(made.with_name("alpha-1.3-py3-none-any.whl"))
        code, _, err = world.run("rebase", "alpha", "1.3", *both(world, wheel))
        assert code == 3 and "is no release to build on" in err


def test_a_wheel_that_is_not_asked_for(world, tmp_path):
    """Another version would be ignored, and the index asked; and a name that says nothing."""
    other = release(tmp_path, MOVED, "1.4")
    code, _, err = world.run("rebase", "alpha", "1.3", "--check", *both(world, other))
    assert code == 3 and "alpha-1.4-py3-none-any.whl is of neither release" in err and "alpha, 1.3 or 1.2" in err
    code, _, err = world.run("rebase", "alpha", "1.3", "--check", *both(world, other.rename(tmp_path / "new.whl")))
    assert code == 2 and "new.whl does not say what it is of" in err


def test_a_wheel_of_too_much_text(world, tmp_path, monkeypatch):
    monkeypatch.setattr("rft.overlay.upstream.MOST_BYTES", 10_000)
    wheel = release(tmp_path, {"alpha/bomb.py": b" " * 20_000})
    code, _, err = world.run("rebase", "alpha", "1.3", *both(world, wheel))
    assert code == 3 and "bytes of text" in err


def test_the_old_wheel_must_be_the_one_of_the_lock(world, tmp_path):
    """Another 1.2 than the series was made for."""
    other = make_wheel(tmp_path / "other", "alpha", "1.2", ALPHA | {"alpha/core.py": b"VALUE = 0\n"})
    wheels = ["--wheel", str(release(tmp_path, {})), "--wheel", str(other)]
    code, _, err = world.run("rebase", "alpha", "1.3", "--check", *wheels)
    assert code == 1 and "was made from another alpha/core.py" in err


def test_an_edit_repository_without_its_version_is_finished_as_before(world, tmp_path):
    """One that somebody made by hand: the installed version decides."""
    folder = base_repository(tmp_path / "byhand", ALPHA)
    (folder / "alpha/core.py").write_bytes(ALPHA["alpha/core.py"] + b"MORE = 1\n")
    old = (world.patches / "alpha-1.2/one.patch").read_text().split("diff --git")[0]
    git(folder, "commit", "-q", "-a", "-F", "-", text=old)
    assert world.run("finish", str(folder))[0] == 0
    assert "MORE" in (world.patches / "alpha-1.2/one.patch").read_text()
    assert io.StringIO((world.patches / "alpha-1.2/series").read_text()).readlines() == ["one.patch\n"]
