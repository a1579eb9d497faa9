"""The strict applier: byte for byte what git apply does, or a refusal."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft.overlay.diff import apply_diff, parse_patch, reverse
from rft.overlay.errors import OverlayError

# Few distinct lines, so that blocks repeat; some look like the syntax of a patch.
TEXTS = [
    b"",
    b"a",
    b"b",
    b"    return x",
    b"-- ",
    b"--- a/f",
    b"+++ b/f",
    b"@@ -1 +1 @@",
    b"diff --git a/f b/f",
    b"\\ No",
]
LINE = st.tuples(st.sampled_from(TEXTS), st.sampled_from([b"\n", b"\n", b"\r\n", b"\r\r\n"])).map(b"".join)


@st.composite
def edits(draw) -> tuple[bytes | None, bytes | None]:
    """Bytes before and after a random edit; None for a file that is created or deleted."""
    before = draw(st.lists(LINE, max_size=30))
    after = list(before)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(after)))
        after[at : at + draw(st.integers(0, 3))] = draw(st.lists(LINE, max_size=3))
    sides = [b"".join(lines) for lines in (before, after)]
    sides = [side.removesuffix(b"\n") if draw(st.booleans()) else side for side in sides]
    kind = draw(st.sampled_from(["modify", "modify", "modify", "create", "delete"]))
    return (None if kind == "create" else sides[0], None if kind == "delete" else sides[1])


def run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, env=environment, check=False)


def git_diff(folder: Path, before: bytes | None, after: bytes | None) -> bytes:
    for side, data in (("a", before), ("b", after)):
        (folder / side / "pkg").mkdir(parents=True)
        if data is not None:
            (folder / side / "pkg/f.py").write_bytes(data)
    options = ["--no-index", "--no-prefix", "--text", "--full-index", "--no-renames"]
    patch = run_git(folder, "diff", *options, "a", "b").stdout
    # Without an index git names a missing side after the other one.
    head, end, rest = patch.partition(b"\n")
    return b"diff --git a/pkg/f.py b/pkg/f.py" * bool(head) + end + rest


@settings(max_examples=120)
@given(edits())
def test_applies_like_git_and_reverts_to_the_same_bytes(edit):
    before, after = edit
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        patch = git_diff(folder, before, after)
        if before == after:
            assert patch == b""
            return
        (diff,) = parse_patch(patch, "p")
        assert diff.path == "pkg/f.py"
        assert apply_diff(before, diff, "p") == after
        assert apply_diff(after, reverse(diff), "p") == before
        (folder / "p").write_bytes(patch)
        done = run_git(folder / "a", "apply", "--whitespace=nowarn", "-p1", "../p")
        assert done.returncode == 0, done.stderr
        place = folder / "a/pkg/f.py"
        assert (place.read_bytes() if place.exists() else None) == after


HEAD = b"diff --git a/pkg/f.py b/pkg/f.py\nindex 1..2 100644\n--- a/pkg/f.py\n+++ b/pkg/f.py\n"
TWICE = b"def f(x):\n    y = x\n    return y\n\ndef g(x):\n    y = x\n    return y\n"


def test_a_block_that_stands_twice_is_never_moved():
    """Upstream dropped a line above, so the stated place holds something else, and the block stands 4 lines on."""
    patch = HEAD + b"@@ -3,2 +3,2 @@\n-    y = x\n-    return y\n+    y = 2 * x\n+    return y\n"
    (diff,) = parse_patch(patch, "p")
    with pytest.raises(OverlayError) as error:
        apply_diff(TWICE, diff, "p")
    assert error.value.code == 4
    assert "line 3" in str(error.value) and "the block is at line [2, 6]" in str(error.value)
    with tempfile.TemporaryDirectory() as name:  # what the overlay protects from: git moves it and reports success
        folder = Path(name).resolve()
        (folder / "pkg").mkdir()
        (folder / "pkg/f.py").write_bytes(TWICE)
        (folder / "p").write_bytes(patch)
        assert run_git(folder, "apply", "--unidiff-zero", "p").returncode == 0
        assert (folder / "pkg/f.py").read_bytes() != TWICE


@pytest.mark.parametrize(
    ("hunk", "why"),
    [
        (b"@@ -1,1 +2,1 @@\n-def f(x):\n+def h(x):\n", "lands at line 1"),
        (b"@@ -90,1 +90,1 @@\n-def f(x):\n+def h(x):\n", "end of file"),
        (b"@@ -7,1 +7,1 @@\n-    return y\n\\ No newline at end of file\n+    return z\n", "return y"),
        (b"@@ -5,1 +5,1 @@\n-def g(x):\n+def h(x):\n@@ -1,1 +1,1 @@\n-def f(x):\n+def i(x):\n", "hunk 2"),
        (b"@@ -1,1 +1,1 @@\n-def f(x):\r\n+def h(x):\r\n", "def f(x):"),
    ],
)
def test_hunks_that_do_not_fit_exactly_are_refused(hunk, why):
    (diff,) = parse_patch(HEAD + hunk, "p")
    with pytest.raises(OverlayError) as error:
        apply_diff(TWICE, diff, "p")
    assert error.value.code == 4 and why in str(error.value)


HUNK = b"@@ -1,1 +1,1 @@\n-a\n+b\n"


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (b"nothing here\n", "no git-format diff"),
        (b"--- a/pkg/f.py\n+++ b/pkg/f.py\n" + HUNK, "no git-format diff"),
        (HEAD, "changes nothing"),
        (HEAD + HUNK + HEAD + HUNK, "twice"),
        (HEAD.replace(b"a/pkg", b"a/../pkg") + HUNK, "file line"),
        (HEAD.replace(b"pkg/f.py", b"../f.py") + HUNK, "unsafe path"),
        (HEAD.replace(b"pkg/f.py", b"/etc/f.py") + HUNK, "unsafe path"),
        (HEAD.replace(b"pkg/f.py", b"pkg/.git/f.py") + HUNK, "unsafe path"),
        (HEAD.replace(b"a/pkg/f.py b/pkg/f.py", b'"a/pkg/\\303.py" "b/pkg/\\303.py"') + HUNK, "file line"),
        (HEAD.replace(b"index 1..2 100644", b"old mode 100644\nnew mode 100755") + HUNK, "file mode"),
        (HEAD.replace(b"index", b"new file mode 120000\nindex") + HUNK, "plain file"),
        (HEAD.replace(b"index", b"rename from x\nrename to y\nindex") + HUNK, "renames"),
        (HEAD.replace(b"index", b"copy from x\ncopy to y\nindex") + HUNK, "copies"),
        (HEAD.replace(b"--- a/pkg/f.py\n+++ b/pkg/f.py\n", b"GIT binary patch\nliteral 1\n"), "binary"),
        (HEAD.replace(b"--- a/pkg/f.py\n+++ b/pkg/f.py\n", b"Binary files differ\n"), "binary"),
        (HEAD.replace(b"+++ b/pkg/f.py", b"+++ b/pkg/g.py") + HUNK, "---/+++"),
        (HEAD + b"@@ -1,2 +1,2 @@\n-a\n+b\n", "cut short"),
        (HEAD + b"@@ -1,2 +1,1 @@\n-a\n+b\n+c\n-d\n", "counts"),
        (HEAD + b"@@ -1,2 +1,2 @@\n\n-a\n+b\n", "starts with"),
        (HEAD + b"@@ -1 @@\n-a\n+b\n", "malformed hunk"),
        (HEAD + HUNK + b"stray\n", "unexpected line"),
        (HEAD + b"@@ -1,2 +1,1 @@\n-a\n\\ No newline at end of file\n-b\n+c\n", "inside a hunk"),
    ],
)
def test_malformed_and_unsupported_patches_are_refused(patch, why):
    with pytest.raises(OverlayError) as error:
        parse_patch(patch, "x.patch")
    assert error.value.code == 4 and why in str(error.value) and "x.patch" in str(error.value)


def test_signature_and_section_headings_are_read():
    patch = (
        b"Subject: x\n\n"
        + HEAD
        + b"@@ -1,1 +1,1 @@ def f\n-a\n+b\n-- \n2.39.5\n\n"
        + HEAD.replace(b"f.py", b"g.py")
        + HUNK
    )
    assert [diff.path for diff in parse_patch(patch, "p")] == ["pkg/f.py", "pkg/g.py"]
