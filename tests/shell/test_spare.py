"""launch/spare.sh against a real sshd on the loopback address, with blanks and quotes in every place's name."""

import os
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import spare_sshd

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    bool(spare_sshd.missing()),
    reason=f"no {', '.join(spare_sshd.missing())}; on Debian: apt-get install -y openssh-server rsync tmux",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(folder of the server, SPARE_SSH). The server and the tmux that sessions started are ended by the end."""
    folder = tmp_path_factory.mktemp("ssh d's")
    home = tmp_path_factory.mktemp("home")
    (home / "tmux").mkdir()
    made = os.geteuid() == 0 and not spare_sshd.PRIVILEGE_SEPARATION.exists()
    if made:
        spare_sshd.PRIVILEGE_SEPARATION.mkdir(mode=0o755)
    process, spare_ssh = spare_sshd.start(folder, home)
    yield home, spare_ssh
    environment = {"PATH": os.environ["PATH"], "TMUX_TMPDIR": str(home / "tmux")}
    subprocess.run(["tmux", "kill-server"], env=environment, capture_output=True, check=False)
    process.terminate()
    process.wait(timeout=300)
    if made:
        spare_sshd.PRIVILEGE_SEPARATION.rmdir()


def git(folder, *command):
    identity = ["-c", "user.name=tester", "-c", "user.email=tester@example.org"]
    result = subprocess.run(["git", "-C", folder, *identity, *command], capture_output=True, text=True, check=True)
    return result.stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """This working tree's files as a repository of one commit, on the branch attempt-01-x."""
    folder = tmp_path_factory.mktemp("repository")
    listed = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, text=True).split("\0"):
        source, target = ROOT / name, folder / name
        if name and source.is_file() and not name.startswith("tests/"):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    git(folder, "init", "--quiet", "--initial-branch=attempt-01-x")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=first")
    return folder


@pytest.fixture
def machines(server, repository, tmp_path):
    """(checkout here, place of the one on the spare, spare(*words, **environment) -> CompletedProcess)."""
    here, there = tmp_path / "this one" / "rft", tmp_path / 'it\'s a "spare"' / "rft"
    shutil.copytree(repository, here, symlinks=True)
    interpreter(here)

    def spare(*words, **environment):
        settings = {"PATH": os.environ["PATH"], "HOME": str(server[0]), "RFT_STACK": "cpu", "LC_ALL": "C.UTF-8"}
        settings |= {"SPARE": "spare", "SPARE_SSH": server[1], "SPARE_ROOT": str(there)} | environment
        return subprocess.run(
            ["bash", here / "launch/spare.sh", *words],
            env=settings,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return here, there, spare


def interpreter(checkout, setting=""):
    """`.venv/bin/python` of a checkout: this test's interpreter, with a line of shell before it."""
    path = checkout / ".venv/bin/python"
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\n{setting}\nexec {shlex.quote(sys.executable)} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def commit(checkout, name, message="next"):
    (checkout / name).write_text(f"{message}\n")
    git(checkout, "add", name)
    git(checkout, "commit", "--quiet", f"--message={message}")
    return git(checkout, "rev-parse", "HEAD")


def objects(checkout):
    """How many git objects a checkout has, loose and packed."""
    counts = dict(line.split(": ") for line in git(checkout, "count-objects", "-v").splitlines())
    return int(counts["count"]) + int(counts["in-pack"])


def refused(result, *words):
    """One message: what, found, wanted, repair."""
    assert result.returncode == 1, result
    assert result.stderr.count("error: ") == 1 and result.stderr.count("repair:") == 1, result.stderr
    for word in words:
        assert word in result.stderr
    return True


def test_code_goes_there_first_and_then_what_is_new(machines):
    here, there, spare = machines
    first = spare("sync-code")
    assert first.returncode == 0, first.stderr
    assert "new checkout" in first.stdout
    assert git(there, "rev-parse", "HEAD") == git(here, "rev-parse", "HEAD")
    assert git(there, "status", "--porcelain") == "" and (there / "launch/spare.sh").is_file()
    assert [path.name for path in there.parent.iterdir()] == ["rft"]

    new = commit(here, "more.txt")
    before = objects(there)
    second = spare("sync-code")
    assert second.returncode == 0, second.stderr
    assert git(there, "rev-parse", "HEAD") == new and (there / "more.txt").read_text() == "next\n"
    assert 3 <= objects(there) - before <= 4, "commit, tree and file, and the tree that the new one is a delta of"

    again = spare("sync-code")
    assert again.returncode == 0 and git(there, "rev-parse", "HEAD") == new


def test_the_spare_follows_to_another_branch_and_keeps_the_old_one(machines):
    here, there, spare = machines
    start = git(here, "rev-parse", "HEAD")
    logged = commit(here, "log.md")
    assert spare("sync-code").returncode == 0
    git(here, "switch", "--quiet", "--create", "attempt-02-y", start)
    assert spare("sync-code").returncode == 0, "a branch whose commit is there already"
    new = commit(here, "other.txt")
    assert spare("sync-code").returncode == 0
    assert git(there, "symbolic-ref", "--short", "HEAD") == "attempt-02-y"
    assert git(there, "rev-parse", "HEAD") == new and git(there, "rev-parse", "attempt-01-x") == logged


def test_a_dirty_spare_is_refused(machines):
    here, there, spare = machines
    assert spare("sync-code").returncode == 0
    (there / "README.md").write_text("changed there")
    (there / "new file").write_text("new there")
    before = git(there, "rev-parse", "HEAD")
    commit(here, "more.txt")
    assert refused(spare("sync-code"), "the spare's tree is dirty", "README.md", "new file", str(there))
    assert git(there, "rev-parse", "HEAD") == before and (there / "README.md").read_text() == "changed there"


@pytest.mark.parametrize("also_here", [True, False])
def test_a_diverged_spare_is_refused(machines, also_here):
    here, there, spare = machines
    assert spare("sync-code").returncode == 0
    theirs = commit(there, "fix.txt", "made on the spare")
    if also_here:
        commit(here, "more.txt")
    assert refused(spare("sync-code"), "the spare has diverged", "1 commits", theirs[:10])
    assert git(there, "rev-parse", "HEAD") == theirs and (there / "fix.txt").is_file()


def test_a_place_with_other_things_is_refused(machines):
    _, there, spare = machines
    there.mkdir(parents=True)
    (there / "thesis.tex").write_text("years of work")
    assert refused(spare("sync-code"), "no checkout on the spare")
    assert [path.name for path in there.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("first", [True, False])
def test_a_connection_that_breaks_changes_nothing(machines, first, tmp_path):
    """What the spare does with the part of a bundle that has come through."""
    here, there, spare = machines
    if not first:
        assert spare("sync-code").returncode == 0
    before = git(there, "for-each-ref") if not first else None
    new = commit(here, "more.txt")
    bundle = subprocess.check_output(["git", "-C", here, "bundle", "create", "--quiet", "-", "attempt-01-x"])
    there.parent.mkdir(exist_ok=True)
    call = '. "$0/launch/spare_remote.sh"; spare_receive "$@"'
    result = subprocess.run(
        ["bash", "-c", call, here, there, "attempt-01-x", new],
        input=bundle[: len(bundle) // 2],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(there.parent)},
        capture_output=True,
        check=False,
    )
    assert result.returncode not in (0, 255) and b"new checkout" not in result.stdout
    assert [path.name for path in there.parent.iterdir()] == ([] if first else ["rft"])
    assert first or (git(there, "for-each-ref") == before and git(there, "status", "--porcelain") == "")


def test_uncommitted_changes_stay_here_and_are_named(machines):
    here, there, spare = machines
    (here / "README.md").write_text("not yet")
    result = spare("sync-code")
    assert result.returncode == 0 and "uncommitted changes are not sent" in result.stderr
    assert (there / "README.md").read_text() != "not yet"


def test_data_inside_the_checkout(machines):
    here, there, spare = machines
    assert refused(spare("sync-data"), "no data to send")
    data = here / ".cache/rft/data"
    (data / "probe sets").mkdir(parents=True)
    (data / "train.jsonl").write_text('{"label": "1"}\n')
    (data / 'probe sets/it\'s "200".jsonl').write_text('{"label": "2"}\n')
    assert spare("sync-code").returncode == 0
    result = spare("sync-data")
    assert result.returncode == 0, result.stderr
    assert "files transferred: 2" in result.stdout
    copied = there / ".cache/rft/data"
    assert (copied / 'probe sets/it\'s "200".jsonl').read_text() == '{"label": "2"}\n'
    assert git(there, "status", "--porcelain") == ""
    (data / "train.jsonl").write_text('{"label": "3"}\n')
    assert "files transferred: 1" in spare("sync-data").stdout
    assert (copied / "train.jsonl").read_text() == '{"label": "3"}\n'


def test_only_ignored_files_of_the_checkout_are_data(machines):
    here, there, spare = machines
    with (here / ".gitignore").open("a") as stream:
        stream.write("/data/*.jsonl\n")
    commit(here, ".gitignore", (here / ".gitignore").read_text())
    (here / "data/pool.jsonl").write_text("{}\n")
    (here / "data/notes.txt").write_text("would make the spare dirty")
    assert spare("sync-data", DATA_ROOT=str(here / "data")).returncode == 0
    assert [path.name for path in (there / "data").iterdir()] == ["pool.jsonl"]


def test_data_elsewhere(machines, tmp_path):
    _, _, spare = machines
    source, target = tmp_path / "data root", tmp_path / "there" / "data"
    (source / "sub").mkdir(parents=True)
    (tmp_path / "kept.jsonl").write_text("{}\n")
    (source / "sub/a.jsonl").symlink_to(tmp_path / "kept.jsonl")
    result = spare("sync-data", DATA_ROOT=str(source), SPARE_DATA_ROOT=str(target))
    assert result.returncode == 0, result.stderr
    assert (target / "sub/a.jsonl").read_text() == "{}\n" and not (target / "sub/a.jsonl").is_symlink()


def test_an_adapter_and_its_manifest(machines, tmp_path):
    here, there, spare = machines
    adapter, kept = here / "runs/exp/it's one/adapter", tmp_path / "big disk/adapter"
    kept.mkdir(parents=True)
    adapter.parent.mkdir(parents=True)
    adapter.symlink_to(kept)  # as a launcher leaves it that writes adapters elsewhere
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(b"weights")
    (adapter.parent / "run.json").write_text('{"base": 1}')
    (adapter.parent / "train.log").write_text("long")
    result = spare("sync-adapter", "this one/rft/runs/exp/it's one/adapter/")
    assert result.returncode == 0, result.stderr
    copied = there / "runs/exp/it's one"
    assert (copied / "adapter/adapter_model.safetensors").read_bytes() == b"weights"
    assert not (copied / "adapter").is_symlink()
    assert sorted(path.name for path in copied.iterdir()) == ["adapter", "run.json"]
    assert refused(spare("sync-adapter", "this one/rft/runs/exp"), "no adapter")


def test_verify_agrees_and_then_names_each_difference(machines, tmp_path):
    here, there, spare = machines
    assert refused(spare("verify"), "no checkout on the spare", "sync-code")
    data = here / ".cache/rft/data"
    data.mkdir(parents=True)
    for name in ("same.jsonl", "it's.jsonl", "gone.jsonl"):
        (data / name).write_text('{"label": "1"}\n')
    assert spare("sync-code").returncode == 0 and spare("sync-data").returncode == 0
    assert refused(spare("verify"), "no environment on the spare", "SPARE_PYTHON")
    interpreter(there)
    equal = spare("verify")
    assert equal.returncode == 0, equal.stdout + equal.stderr
    assert "equal: commit " + git(here, "rev-parse", "HEAD")[:10] in equal.stdout
    assert "3 data files" in equal.stdout and "tree_id openrlhf " in equal.stdout

    shutil.rmtree(there / ".venv")
    environment = foreign_packages(tmp_path / "packages")
    interpreter(there, f"export PYTHONPATH={shlex.quote(str(environment))}")
    (there / ".cache/rft/data/it's.jsonl").write_text('{"label": "2"}\n')
    (there / ".cache/rft/data/gone.jsonl").unlink()
    new = commit(here, "more.txt")
    result = spare("verify")
    assert result.returncode == 1, result.stderr
    for difference in (
        f"commit: {new} here, {git(there, 'rev-parse', 'HEAD')} on the spare",
        "data: it's.jsonl has another content on the spare",
        "data: gone.jsonl is missing on the spare",
        "on the spare",
        "tree_id: openrlhf ",
    ):
        assert difference in result.stdout
    assert "ray " in result.stdout and "99.0 on the spare" in result.stdout
    assert result.stdout.count("differs: ") == len(result.stdout.splitlines()) == 5, result.stdout
    assert "same.jsonl" not in result.stdout


def foreign_packages(folder):
    """A path that shadows openrlhf with an edited copy, and says that ray is 99.0."""
    import importlib.metadata
    import importlib.util

    package = Path(importlib.util.find_spec("openrlhf").origin).parent
    shutil.copytree(package, folder / "openrlhf")
    info = Path(str(importlib.metadata.distribution("openrlhf").locate_file(""))).glob("openrlhf-*.dist-info")
    for path in info:
        shutil.copytree(path, folder / path.name)
    with (folder / "openrlhf/models/loss.py").open("a") as stream:
        stream.write("# edited on the spare\n")
    (folder / "ray-99.0.dist-info").mkdir()
    (folder / "ray-99.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 99.0\n")
    return folder


def test_verify_names_uncommitted_changes(machines, server):
    here, there, spare = machines
    (server[0] / ".bashrc").write_text("echo welcome\n")
    assert spare("sync-code").returncode == 0
    interpreter(there)
    (here / "README.md").write_text("not yet")
    result = spare("verify")
    (server[0] / ".bashrc").unlink()
    assert (result.returncode, result.stdout) == (1, "differs: uncommitted changes here\n"), result.stderr


def ended(spare, name):
    """Output of `tail` once the job has ended."""
    for _ in range(600):
        result = spare("tail", name)
        assert result.returncode == 0, result.stderr
        if not result.stdout.endswith(f"{name}: running\n"):
            return result.stdout
        time.sleep(0.1)
    raise AssertionError(result.stdout)


def test_a_job_gets_its_words_as_they_are(machines):
    _, there, spare = machines
    assert spare("sync-code").returncode == 0
    interpreter(there)
    words = ["a  b", "it's", '"two"', "$HOME", "*", "; exit 9", "`id`", "back\\slash", "ünï", "", "-n", "new\nline"]
    result = spare("run", "words", "python", "-c", "import os, sys; print(sys.argv[1:], os.getcwd())", *words)
    assert result.returncode == 0, result.stderr
    assert ended(spare, "words") == f"{words} {there}\nwords: exit status 0\n"


def test_a_failing_job_says_how_it_ended(machines):
    _, there, spare = machines
    assert spare("sync-code").returncode == 0
    assert spare("run", "fails", "bash", "-c", "echo out; echo 'no \"model\"' >&2; exit 3").returncode == 0
    assert ended(spare, "fails") == 'out\nno "model"\nfails: exit status 3\n'
    assert spare("tail", "fails", "1").stdout == 'no "model"\nfails: exit status 3\n'
    assert (there / "runs/spare/fails/status").read_text() == "3\n"
    assert git(there, "status", "--porcelain") == ""
    assert refused(spare("run", "fails", "true"), "the name is taken")
    assert 'no "model"' in (there / "runs/spare/fails/log").read_text()


def test_a_running_session_is_refused_and_a_killed_one_is_told(machines, server):
    _, _, spare = machines
    assert spare("sync-code").returncode == 0
    assert spare("run", "long", "bash", "-c", "echo started; sleep 600").returncode == 0
    assert refused(spare("run", "long", "true"), "the session exists")
    assert spare("tail", "long").stdout.endswith("long: running\n")
    tmux = {"PATH": os.environ["PATH"], "TMUX_TMPDIR": str(server[0] / "tmux")}
    subprocess.run(["tmux", "kill-session", "-t", "=long"], env=tmux, check=True)
    assert "long: ended without an exit status" in ended(spare, "long")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no such action"),
        (("deploy",), "no such action"),
        (("verify", "now"), "too many arguments"),
        (("run", "a.b", "true"), "unusable name"),
        (("run", "a"), "no command"),
        (("tail", "nothing"), "no such job"),
        (("tail", "a", "many"), "not a number"),
        (("sync-adapter",), "no adapter"),
    ],
)
def test_bad_use(machines, words, message):
    assert refused(machines[2](*words), message)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"SPARE": ""}, "no spare machine"),
        ({"SPARE": "-oProxyCommand=true"}, "no spare machine"),
        ({"SPARE_SSH": "ssh -i 'open"}, "SPARE_SSH cannot be read"),
        ({"SPARE_ROOT": "rft"}, "SPARE_ROOT is not absolute"),
    ],
)
def test_bad_settings(machines, environment, message):
    assert refused(machines[2]("verify", **environment), message)


@pytest.mark.parametrize("words", [("sync-code",), ("sync-data",), ("verify",), ("run", "a", "true"), ("tail", "a")])
def test_a_host_that_nobody_answers_for(machines, words):
    here, _, spare = machines
    (here / ".cache/rft/data").mkdir(parents=True)
    (here / ".cache/rft/data/a.jsonl").write_text("{}\n")
    with socket.socket() as taken:  # bound and not listening: a connection is refused at once
        taken.bind(("127.0.0.1", 0))
        options = f"ssh -F /dev/null -p {taken.getsockname()[1]} -o UserKnownHostsFile=/dev/null"
        result = spare(*words, SPARE="127.0.0.1", SPARE_SSH=options)
    assert refused(result, "ssh cannot reach the spare", "Connection refused", "try it by hand")
    assert result.stdout == ""


@pytest.mark.parametrize(
    "words", [("sync-code",), ("sync-data",), ("verify",), ("run", "a", "echo", "it's"), ("tail", "a")]
)
def test_a_dry_run_prints_and_asks_nobody(machines, words):
    here, there, spare = machines
    (here / ".cache/rft/data").mkdir(parents=True)
    (here / ".cache/rft/data/a.jsonl").write_text("{}\n")
    result = spare(*words, DRY_RUN="1", SPARE="nobody.invalid", SPARE_SSH="ssh -p 2222")
    assert result.returncode == 0, result.stderr
    lines = [shlex.split(line) for line in result.stdout.splitlines()]
    assert any(line[:3] == ["ssh", "-p", "2222"] and "nobody.invalid" in line for line in lines)
    assert words[0] != "run" or lines[-1][-2:] == ["echo", "it's"]
    assert not there.parent.exists()
