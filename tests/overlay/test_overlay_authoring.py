"""edit, new, finish, check, the header lint and the ledger."""

from __future__ import annotations

import re
import shutil

import pytest
from overlay_toy import ALPHA, HEADER, base_repository, commit, edited, git, load, make_wheel

from rft.overlay.headers import fields, lint, normalise
from rft.overlay.ledger import render
from rft.overlay.nodes import compare
from rft.overlay.series import load_packages


def edit(world, tmp_path, package="alpha"):
    folder = tmp_path / "edit"
    code, out, err = world.run("edit", package, "--dir", str(folder))
    assert code == 0 and str(folder) in out, err
    return folder


def test_round_trip_changes_nothing(world, tmp_path):
    """edit then finish writes the very same files, from a clean and from a patched environment."""
    before = {p: p.read_bytes() for p in world.patches.rglob("*") if p.is_file()}
    for command in ("status", "apply"):
        assert world.run(command)[0] == 0
        folder = edit(world, tmp_path)
        assert git(folder, "log", "--format=%s", "--reverse").splitlines()[1:] == ["one", "Two: things"]
        assert git(folder, "show", "base:alpha/core.py").encode() == ALPHA["alpha/core.py"]
        assert world.run("finish", str(folder))[0] == 0
        assert {p: p.read_bytes() for p in world.patches.rglob("*") if p.is_file()} == before
        assert world.run("check")[0] == 0
        shutil.rmtree(folder)


def test_reorder_drop_rename_and_add(world, tmp_path):
    folder = edit(world, tmp_path)
    assert world.run("new", "alpha", "third", "--dir", str(folder))[0] == 0
    code, _, err = world.run("finish", str(folder))
    assert code == 1 and "TODO" in err and "third.patch" in err and "changes nothing" in err
    (folder / "alpha/extra.py").write_bytes(b"EXTRA = 1\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--amend", "-F", "-", text=HEADER.format(subject="third") + "Patch-Name: third\n")
    # Drop the first patch.
    second = git(folder, "rev-parse", "HEAD~1").strip()
    git(folder, "checkout", "-q", "-b", "other", "base")
    git(folder, "cherry-pick", "-X", "theirs", "overlay")
    code, _, err = world.run("finish", str(folder))
    assert code == 0, err
    assert (world.patches / "alpha-1.2/series").read_text() == "third.patch\n"
    assert sorted(p.name for p in (world.patches / "alpha-1.2").iterdir()) == ["lock.json", "series", "third.patch"]
    assert "third" in (world.patches / "README.md").read_text() and second
    assert world.run("apply")[0] == 0
    assert (world.site / "alpha/extra.py").exists() and "y = x + 1" not in (world.site / "alpha/core.py").read_text()


def test_edit_refuses(world, tmp_path):
    assert world.run("edit")[0] == 2  # which package?
    (tmp_path / "edit").mkdir()
    (tmp_path / "edit/file").touch()
    assert world.run("edit", "alpha", "--dir", str(tmp_path / "edit"))[0] == 2
    (world.site / "alpha/sub/deep.py").write_text("drifted\n")
    code, _, err = world.run("edit", "alpha")
    assert code == 1 and "alpha/sub/deep.py" in err
    code, _, err = world.run("new", "alpha", "Bad Name")
    assert code == 2 and "bad-name" in err


def uncommitted(folder):
    (folder / "alpha/core.py").write_text("x = 1\n")


def untracked(folder):
    (folder / "alpha/new.py").write_text("x = 1\n")


def merged(folder):
    git(folder, "checkout", "-q", "-b", "side", "base")
    commit(folder, {"alpha/side.py": b"x = 1\n"}, HEADER.format(subject="side"))
    git(folder, "checkout", "-q", "overlay")
    git(folder, "merge", "-q", "--no-edit", "side")


def outside(folder):
    commit(folder, {"gamma/x.py": b"x = 1\n"}, HEADER.format(subject="outside"))


def at_top(folder):
    commit(folder, {"x.py": b"x = 1\n"}, HEADER.format(subject="outside"))


def headless(folder):
    commit(folder, {"alpha/x.py": b"x = 1\n"}, "no header at all")


def same_name(folder):
    commit(folder, {"alpha/x.py": b"x = 1\n"}, HEADER.format(subject="one"))


def untagged(folder):
    git(folder, "tag", "-d", "base")


def nothing(folder):
    git(folder, "reset", "-q", "--hard", "base")


def other_base(folder):
    git(folder, "checkout", "-q", "base")
    git(folder, "commit", "-q", "--amend", "-m", "another base")


def cancelled(folder):
    commit(folder, {"alpha/data.json": b"{1}\n"}, HEADER.format(subject="there"))
    commit(folder, {"alpha/data.json": b"{}\n"}, HEADER.format(subject="and back"))


def binary(folder):
    commit(folder, {"alpha/x.bin": b"\0\1\2"}, HEADER.format(subject="binary"))
    git(folder, "mv", "alpha/x.bin", "alpha/y.bin")
    (folder / "alpha/y.bin").chmod(0o755)
    git(folder, "commit", "-q", "-a", "-F", "-", text=HEADER.format(subject="mode"))


REFUSALS = {
    uncommitted: "uncommitted work",
    untracked: "uncommitted work",
    merged: "merge commits",
    outside: "outside one package",
    at_top: "outside one package",
    headless: "Why: is missing",
    same_name: "second patch named one.patch",
    untagged: "no tag base",
    nothing: "no commit after base",
    other_base: "does not descend",
    cancelled: "cancel out",
    binary: "not a plain file",
}


@pytest.mark.parametrize("spoil", REFUSALS)
def test_finish_refuses_and_writes_nothing(world, tmp_path, spoil):
    before = {p: p.read_bytes() for p in world.patches.rglob("*") if p.is_file()}
    folder = edit(world, tmp_path)
    spoil(folder)
    code, _, err = world.run("finish", str(folder))
    assert code in (1, 2, 4) and REFUSALS[spoil] in err
    assert {p: p.read_bytes() for p in world.patches.rglob("*") if p.is_file()} == before


def test_finish_refuses_a_base_that_upstream_never_shipped(world, tmp_path):
    repository = base_repository(tmp_path / "r", ALPHA | {"alpha/core.py": b"not upstream\n"})
    commit(repository, {"alpha/core.py": b"changed\n"}, HEADER.format(subject="x"))
    code, _, err = world.run("finish", str(repository))
    assert code == 1 and "alpha/core.py at the tag base" in err
    wheel = make_wheel(tmp_path, "alpha", "1.2", ALPHA)
    code, _, err = world.run("finish", str(repository), "--wheel", str(wheel))
    assert code == 1 and "not what upstream ships" in err
    code, _, err = world.run("finish", str(repository), "--wheel", str(repository / "alpha/core.py"))
    assert code == 2 and "not a wheel" in err
    assert world.run("finish", str(tmp_path / "nowhere"))[0] == 2


def test_first_series_of_a_package_names_its_folder_and_distributions(world, tmp_path):
    shutil.rmtree(world.patches)
    repository = base_repository(tmp_path / "r", {"beta/mod.py": world.pristine["beta/mod.py"]})
    commit(repository, {"beta/mod.py": b"MODE = 'x'\n"}, HEADER.format(subject="x"))
    (wheel,) = world.wheels.glob("beta*")
    assert world.run("finish", str(repository), "--wheel", str(wheel))[0] == 0
    lock = load((world.patches / "beta-0.5/lock.json").read_text())
    assert set(lock["distributions"]) == {"beta", "beta-cpu"} and len(lock["distributions"]["beta-cpu"]) == 1
    assert world.run("check", "--wheel", str(wheel))[0] == 0
    assert world.run("apply")[0] == 0


def test_tree_id_ignores_how_patches_are_split_and_worded(world, tmp_path):
    before = load((world.patches / "alpha-1.2/lock.json").read_text())
    folder = edit(world, tmp_path)
    git(folder, "reset", "-q", "--soft", "base")
    git(folder, "commit", "-q", "-F", "-", text=HEADER.format(subject="all in one"))
    assert world.run("finish", str(folder))[0] == 0
    after = load((world.patches / "alpha-1.2/lock.json").read_text())
    assert after["tree_id"] == before["tree_id"] and after["series_id"] != before["series_id"]


def test_check_finds(world):
    assert world.run("check") == (0, "check: ok\n", "")
    assert world.run("apply")[0] == 0
    assert world.run("check")[0] == 0  # the pristine bytes come from the blob store
    shutil.rmtree(world.site / ".rft-overlay/blobs")
    assert world.run("check")[0] == 0  # or from taking the series off
    assert world.run("revert")[0] == 0
    folder = world.patches / "alpha-1.2"
    (folder / "stray.patch").write_text("x")
    ledger = world.patches / "README.md"
    ledger.write_text(ledger.read_text() + "by hand\n")
    one = folder / "one.patch"
    text = one.read_bytes()
    header = text.replace(b"Inappropriate [toy]", b"Submitted").replace(b"test_apply_status", b"test_no_such")
    one.write_bytes(header.replace(b"alpha>=2", b"next year"))
    code, _, err = world.run("check")
    assert code == 1
    for words in (
        "stray.patch is not in the series",
        "README.md is stale",
        "one.patch: Upstream-Status: found 'Submitted'",
        "defines no test_no_such",
        "Remove-When: found 'next year [toy]'",
        "lock.json is stale in patches, series_id",
    ):
        assert words in err
    one.write_bytes(text.replace(b"+    y = x + 1", b"+    y = (x"))
    code, _, err = world.run("check")
    assert code == 1 and "lock.json is stale" in err
    one.write_bytes(re.sub(rb"@@ -\d+,(\d) \+\d+,", rb"@@ -1,\1 +1,", text, count=1))
    code, _, err = world.run("check")
    assert code == 1 and "does not apply to alpha/core.py" in err
    one.write_bytes(text)
    (folder / "stray.patch").unlink()
    ledger.write_text(ledger.read_text().removesuffix("by hand\n"))
    assert world.run("check")[0] == 0


def test_ledger_is_by_group_the_essential_first(world):
    two = world.patches / "alpha-1.2/two-things.patch"
    text = two.read_text()
    two.write_text(text.replace("Group: CPU", "Group: gpt-oss").replace("the toy", "a | of <toys>"))
    ledger = render(load_packages(world.patches, [], strict=False))
    parts = re.split(r"(?m)^## ", ledger)
    assert [part.split("\n")[0] for part in parts[1:]] == ["gpt-oss", "CPU", "Details: alpha-1.2", "Details: beta-0.5"]
    assert "| [two-things](alpha-1.2/two-things.patch) (alpha) | a \\| of \\<toys> needs it |  |" in parts[1]
    assert "[two-things]" not in parts[2] and "[one](alpha-1.2/one.patch) (alpha)" in parts[2]
    assert parts[3].index("[one]") < parts[3].index("[two-things]")
    assert "Files: `core.py`" in parts[3] and "Remove when: alpha>=2 [toy]." in parts[3]


def test_ledger_names_what_a_later_series_has_of_its_own(world):
    newer = shutil.copytree(world.patches / "alpha-1.2", world.patches / "alpha-1.3")
    details = render(load_packages(world.patches, [], strict=False)).partition("## Details: alpha-1.3")[2]
    assert "\n2 of them are described above, by the series that they come from.\n" in details
    two = newer / "two-things.patch"
    two.write_text(two.read_text().replace("the toy", "the newer toy"))
    details = render(load_packages(world.patches, [], strict=False)).partition("## Details: alpha-1.3")[2]
    own = "[two-things](alpha-1.3/two-things.patch) (alpha)"
    assert f"come from; of these, with another header or other files here: {own}.\n" in details


def test_check_works_with_temporary_folders_inside_a_checkout(world, tmp_path, monkeypatch):
    git(tmp_path, "init", "-q")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert world.run("check")[0] == 0


def test_patched_file_that_does_not_compile(world, tmp_path):
    folder = edit(world, tmp_path)
    broken = edited((folder / "alpha/core.py").read_bytes(), b"'new'", b"'new")
    commit(folder, {"alpha/core.py": broken}, HEADER.format(subject="broken"))
    assert world.run("finish", str(folder))[0] == 0
    for command, code in (("apply", 4), ("check", 1)):
        found, _, err = world.run(command)
        assert found == code and "does not compile" in err
    assert world.snapshot() == world.pristine


GOOD = {
    "Subject": "x",
    "Group": "loss",
    "Why": "y",
    "Upstream-Status": "Pending",
    "Affects": "z (numerics: unchanged)",
    "Probe": "tests/a.py::test_b",
    "Remove-When": "never [ours]",
}


def header(**changes: str) -> str:
    merged = GOOD | {k.replace("_", "-"): v for k, v in changes.items()}
    return "".join(f"{k}: {v}\n" for k, v in merged.items())


@pytest.mark.parametrize(
    "text",
    [
        header(),
        header(Upstream_Status="Submitted [https://example.com/pull/1]"),
        header(Upstream_Status="Backport [https://example.com/pull/1]"),
        header(Upstream_Status="Inappropriate [CPU only]"),
        header(Affects="loss (numerics: changed)", Gate="RFT_X=1 (default off)"),
        header(Upstream_Status="Fixed [https://example.com/commit/1]"),
        header(Remove_When="openrlhf>=0.11.1 [has it]"),
        header(Remove_When="vllm>=0.16,<1 [has it]"),
        header(Remove_When="not yet [openrlhf 0.11.2 lacks it]"),
        header(Group="fail loudly"),
        header() + "Probe: tests/c.py::TestX::test_d\n",
        header(Why="first\n  and second line"),
    ],
)
def test_good_headers(text):
    assert lint(text) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (header(Why=""), "Why: is missing"),
        (header(Upstream_Status="Submitted"), "Upstream-Status"),
        (header(Upstream_Status="Inappropriate"), "Upstream-Status"),
        (header(Upstream_Status="Denied"), "Upstream-Status"),
        (header(Affects="loss"), "Affects"),
        (header(Affects="loss (numerics: maybe)"), "Affects"),
        (header(Gate="RFT_X"), "Gate"),
        (header(Gate="RFT_X=1 (default on)"), "Gate"),
        (header(Probe="tests/a.py"), "Probe"),
        (header(Group=""), "Group: is missing"),
        (header(Group="speed"), "Group: found 'speed', wanted one of gpt-oss, sync,"),
        (header(Remove_When="openrlhf [has it]"), "Remove-When"),
        (header(Remove_When="openrlhf>=0.11.1"), "Remove-When"),
        (header(Remove_When="soon [it is said]"), "Remove-When"),
        (header(Remove_When="never"), "Remove-When"),
        (header() + "Subject: again\n", "2 times"),
        (header() + "Depends-On: x\n", "unknown header line"),
        (header() + "free text\n", "unknown header line"),
        (header(Why="TODO"), "still says TODO"),
    ],
)
def test_bad_headers(text, words):
    assert any(words in problem for problem in lint(text))


def test_commit_messages_become_headers():
    text, name = normalise("ppo_actor: x: y\n\nWhy: z\n  more\n\nPatch-Name: a-b\n")
    assert name == "a-b" and fields(text)[0] == {"Subject": ["ppo_actor: x: y"], "Why": ["z more"]}


def test_nodes_are_compared():
    wanted = {"alpha": {"1" * 16}, "beta": {"2" * 16}}
    right = {"alpha": "1" * 16, "beta": "2" * 16}
    assert compare([("n1", right), ("n2", right)], wanted) == []
    for wrong in ({"alpha": "1" * 16}, right | {"beta": "PARTIAL"}, right | {"alpha": "3" * 16}, {"error": "ERROR: x"}):
        problems = compare([("n1", right), ("n2", wrong)], wanted)
        assert any("n2" in problem for problem in problems) and any("differs" in problem for problem in problems)
    both_wrong = right | {"alpha": "3" * 16}
    assert len(compare([("n1", both_wrong), ("n2", both_wrong)], wanted)) == 2
