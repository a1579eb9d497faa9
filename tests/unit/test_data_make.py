"""All problem files by one command: from a hub on the loopback, from its cache, from files; and what goes wrong."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import COMMIT, serve
from published_sets import aime_index, gsm8k, math, numina, write, write_hub

from rft.data import __main__ as command
from rft.data.row_files import read_rows
from rft.data.sets import HUB
from rft.record.digest import file_sha256

ROOT = Path(__file__).resolve().parents[2]
SIZES = ("--sft-size", "20", "--dev-size", "5", "--rl-pool-size", "280", "--subset-size", "10", "--trained", "60")
COUNTS = {"aime_eval": 45, "probe_set_200": 200, "probe_set_200_ood": 200, "probe_set_1000_ood": 1000, "sft_dev": 5,
          "sft_rl_pool": 280, "sft_rl_pool_10": 10, "sft_train": 20, "trained": 60}  # fmt: skip
NUMINA = "AI-MO/NuminaMath-1.5/data/train-0000{}-of-00002.parquet"


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """The sets as a folder of the hub's repositories."""
    return write_hub(tmp_path_factory.mktemp("hub"))


@pytest.fixture(scope="module")
def fetched(tmp_path_factory, published):
    """What the command made of the hub: the folder, the hub's cache, the endpoint's requests, what it printed."""
    place = tmp_path_factory.mktemp("fetched")
    with serve(published) as hub:
        done = by_hub(place / "data", place / "cache", HF_ENDPOINT=hub.endpoint)
        first = list(hub.asked)
        hub.asked.clear()
        hub.commit = "f" * 40  # main moves on
        again = by_hub(place / "data", place / "cache", HF_ENDPOINT=hub.endpoint)
        (place / "data" / "sft_dev.jsonl").unlink()
        mended = by_hub(place / "data", place / "cache", HF_ENDPOINT=hub.endpoint)
        return place, first, hub.asked, [done, again, mended]


def by_hub(out: Path, cache: Path, *more: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "rft.data", "make", "--out", out, *SIZES, *more],
        env=environment(cache, **variables), cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def environment(cache: Path, **variables: str) -> dict[str, str]:
    ours = ("HF_", "TRANSFORMERS_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours) and not k.lower().endswith("_proxy")}
    return kept | {"HF_HOME": str(cache), "NO_PROXY": "*"} | variables


@pytest.fixture
def make(monkeypatch, capsys):
    """The command in this process, from files: exit status, standard output, standard error."""

    def call(out: Path, given: Path, *more: object) -> tuple[int, str, str]:
        words = ["make", "--out", out, "--from", given, *SIZES, *more]
        monkeypatch.setattr(sys, "argv", ["rft.data", *map(str, words)])
        return command.main(), *capsys.readouterr()

    return call


def contents(out: Path) -> dict[str, str]:
    """sha256 by name of the problem files in a folder."""
    return {path.stem: file_sha256(path) for path in sorted(out.glob("*.jsonl"))}


def counts(out: Path) -> dict[str, int]:
    return {path.stem: sum(1 for _ in read_rows(path)) for path in out.glob("*.jsonl")}


def test_a_hub_gives_every_file_at_recorded_commits(fetched):
    place, asked, _, (done, _, _) = fetched
    assert done.returncode == 0, done.stderr
    assert counts(place / "data") == COUNTS
    lock = json.loads((place / "data" / "data_sources.json").read_text())
    assert {repo: entry["revision"] for repo, entry in lock.items()} == {each.repo: COMMIT for each in HUB}
    assert lock["openai/gsm8k"]["files"] == ["main/test-00000-of-00001.parquet"]
    # Each set is asked for once, and its files at the commit, not at main.
    assert [line for line in asked if line.endswith("/revision/main")] == [
        f"GET /api/datasets/{each.repo}/revision/main" for each in HUB
    ]
    assert all(f"/resolve/{COMMIT}/" in line for line in asked if "/resolve/" in line)
    for words in ("sources/math.jsonl", "900", "HuggingFaceH4/aime_2024", COMMIT[:12], "15 in an earlier file"):
        assert words in done.stdout
    assert not (place / "data" / ".making").exists()


def test_a_second_run_asks_nothing_and_mends_what_is_missing(fetched):
    place, _, asked, (_, again, mended) = fetched
    assert again.returncode == 0 and "complete already" in again.stdout
    assert mended.returncode == 0 and "complete already" not in mended.stdout, mended.stderr
    assert asked == [] and counts(place / "data") == COUNTS


def test_the_cache_serves_without_a_network(fetched, tmp_path):
    place = fetched[0]
    done = by_hub(tmp_path / "data", place / "cache", HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "data") == contents(place / "data")
    lock = (tmp_path / "data" / "data_sources.json").read_text()
    assert lock == (place / "data" / "data_sources.json").read_text()


def test_a_cut_file_in_the_cache_is_named_with_its_repair(fetched, published, tmp_path):
    shutil.copytree(fetched[0] / "cache", tmp_path / "cache", symlinks=True)
    blob = next((tmp_path / "cache" / "hub" / "datasets--openai--gsm8k" / "blobs").iterdir())
    blob.write_bytes(blob.read_bytes()[:-100])
    done = by_hub(tmp_path / "data", tmp_path / "cache", HF_HUB_OFFLINE="1")
    assert done.returncode == 1 and f"rm {blob.resolve()} and run this again" in done.stderr, done.stderr
    assert contents(tmp_path / "data") == {}
    blob.unlink()
    with serve(published) as hub:
        done = by_hub(tmp_path / "data", tmp_path / "cache", HF_ENDPOINT=hub.endpoint)
    assert done.returncode == 0 and len(contents(tmp_path / "data")) == len(COUNTS), done.stderr


def test_files_give_what_the_hub_gives(fetched, published, tmp_path, make):
    status, printed, _ = make(tmp_path, published)
    assert status == 0 and "train-00001-of-00002.parquet: numina" in printed
    ours, theirs = contents(tmp_path), contents(fetched[0] / "data")
    # MATH's training problems are taken too, but below level 4 none is used; of GSM8K the test problems alone.
    assert ours == theirs
    assert "socratic/test-00000-of-00001.parquet: not used" in printed


@pytest.mark.parametrize("way", ["closed port", "offline", "no such set"])
def test_without_the_hub_there_is_one_message(tmp_path, way):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}"
        if way == "no such set":
            (tmp_path / "hub").mkdir()
            with serve(tmp_path / "hub") as hub:
                done = by_hub(tmp_path / "data", tmp_path / "cache", HF_ENDPOINT=hub.endpoint)
        else:
            offline = {"HF_HUB_OFFLINE": "1"} if way == "offline" else {}
            done = by_hub(tmp_path / "data", tmp_path / "cache", HF_ENDPOINT=closed, **offline)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    for words in ("found no AI-MO/NuminaMath-1.5 at http://127.0.0.1", "wanted AI-MO/N", "--from DIR", "HF_ENDPOINT"):
        assert words in done.stderr
    assert ("unset HF_HUB_OFFLINE" in done.stderr) == (way == "offline")
    assert contents(tmp_path / "data") == {} and not (tmp_path / "data" / "data_sources.json").exists()


# Sends the process a signal at its n-th rename.
SIGNALLED = """
import os, pathlib, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell started the tests in its background
renamed, real, last, number = [], pathlib.Path.replace, int(sys.argv.pop(1)), int(sys.argv.pop(1))
def replace(self, target):
    renamed.append(target)
    if len(renamed) == last:
        os.kill(os.getpid(), number)
    return real(self, target)
pathlib.Path.replace = replace
runpy.run_module("rft.data", run_name="__main__", alter_sys=True)
"""
IN_STAGE = 3 + 4 + 5 + 2  # sources, probes and manifest, training sets and manifest, ID probe and manifest


def signalled(rename: int, number: int, out: Path, given: Path) -> subprocess.CompletedProcess:
    words = [str(rename), str(int(number)), "make", "--out", out, "--from", given, *SIZES]
    command = [sys.executable, "-c", SIGNALLED, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_an_interrupted_command_leaves_nothing(published, tmp_path):
    done = signalled(IN_STAGE, signal.SIGINT, tmp_path, published)
    assert done.returncode == 130 and len(done.stderr.splitlines()) == 1 and "interrupted" in done.stderr, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [".make.lock"]


@pytest.mark.parametrize("rename", [2, IN_STAGE + 1, IN_STAGE + 6])
def test_a_killed_command_is_run_again(fetched, published, tmp_path, make, rename):
    killed = signalled(rename, signal.SIGKILL, tmp_path, published)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (tmp_path / ".making").is_dir() and not (tmp_path / "data_manifest.json").exists()
    assert (rename > IN_STAGE + 1) == bool([path for path in tmp_path.rglob("*.jsonl") if ".making" not in path.parts])
    status, printed, error = make(tmp_path, published)
    assert status == 0 and "complete already" not in printed, error
    assert contents(tmp_path) == contents(fetched[0] / "data") and not (tmp_path / ".making").exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


def renamed(rows: list[dict], old: str, new: str) -> list[dict]:
    return [{new if name == old else name: value for name, value in row.items()} for row in rows]


GSM8K = "openai/gsm8k/main/test-00000-of-00001.parquet"
MATH = "EleutherAI/hendrycks_math/algebra/test-00000-of-00001.parquet"
AIME = "MathArena/aime_2025"
BAD = {
    "cut gsm8k": (lambda d: cut(d / GSM8K), (), (GSM8K, "cannot be read", "remove it and fetch it again")),
    "cut numina": (lambda d: cut(d / NUMINA.format(1)), (), (NUMINA.format(1), "cannot be read")),
    "numina columns": (
        lambda d: write(d / NUMINA.format(0), renamed(numina(9), "answer", "final")), (), ("wanted also ['answer']",)
    ),
    "gsm8k columns": (lambda d: write(d / GSM8K, renamed(gsm8k(3), "answer", "final")), (), ("behind '####'", "row 1")),
    "math columns": (
        lambda d: write(d / MATH, renamed(math("algebra", 3), "level", "hard")), (), ("wanted 'level'", "'hard'")
    ),
    "math text": (
        lambda d: write(d / MATH, renamed(math("algebra", 3), "problem", "text")), (), ("wanted text in 'problem'",)
    ),
    "aime columns": (
        lambda d: write(d / AIME / "data" / "train-00000-of-00001.parquet", renamed(aime_index(), "problem_idx", "n")),
        (), ("wanted year and number", "problem_idx"),
    ),
    "no gsm8k": (lambda d: shutil.rmtree(d / "openai"), (), ("gsm8k: none", "put gsm8k there", "docs/data.md")),
    "no shard": (lambda d: (d / NUMINA.format(0)).unlink(), (), (f"found no {NUMINA.format(0)}", "all shards")),
    "numina as a list": (
        lambda d: (d / "numina.json").write_text("[]"), (), ("found numina.json", "as .parquet or .jsonl"),
    ),
    "a text file": (lambda d: (d / "aime.jsonl").write_text("no\n"), (), ("aime.jsonl", "line 1", "not JSON")),
    "too few": (lambda d: None, ("--rl-pool-size", "900"), ("found 320 problems", "pass smaller --sft-size")),
    "nothing trained": (lambda d: None, ("--trained", "0"), ("found --trained 0",)),
    "all trained": (lambda d: None, ("--trained", "200"), ("found 80 problems outside", "--rl-pool-size")),
    "sizes": (lambda d: None, ("--subset-size", "999"), ("--subset-size 999 above",)),
    "no folder": (shutil.rmtree, (), ("found no folder", "correct --from")),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_message_and_no_file(published, tmp_path, make, case):
    spoil, more, words = BAD[case]
    shutil.copytree(published, tmp_path / "given")
    spoil(tmp_path / "given")
    status, _, error = make(tmp_path / "data", tmp_path / "given", *more)
    assert status == 1 and len(error.splitlines()) == 1, error
    assert [word for word in words if word not in error] == [], error
    assert {path.name for path in tmp_path.glob("data/*")} <= {".make.lock"}


def test_what_differs_is_replaced_by_force_only(published, tmp_path, make):
    foreign = tmp_path / "probe_set_200.jsonl"
    foreign.write_text("mine\n")
    status, _, error = make(tmp_path, published)
    assert status == 1 and f"found {foreign} with another content" in error and "--force" in error
    assert contents(tmp_path) == {"probe_set_200": file_sha256(foreign)} and foreign.read_text() == "mine\n"
    assert make(tmp_path, published, "--force")[0] == 0
    made = contents(tmp_path)
    assert len(made) == len(COUNTS)

    (tmp_path / "trained.jsonl").write_text("changed\n")
    status, _, error = make(tmp_path, published)
    assert status == 1 and "trained.jsonl changed since it was made" in error
    assert make(tmp_path, published, "--force")[0] == 0 and contents(tmp_path) == made

    status, _, error = make(tmp_path, published, "--subset-size", "12")
    assert status == 1 and "made with subset 10, wanted subset 12" in error and contents(tmp_path) == made
    assert make(tmp_path, published, "--subset-size", "12", "--force")[0] == 0
    # A subset of another size would overlap, and no manifest would name it.
    assert set(contents(tmp_path)) == set(made) - {"sft_rl_pool_10"} | {"sft_rl_pool_12"}


def test_a_file_is_no_folder_to_write_to(published, tmp_path, make):
    (tmp_path / "data").write_text("mine\n")
    status, _, error = make(tmp_path / "data", published)
    assert status == 1 and "found a file at" in error and (tmp_path / "data").read_text() == "mine\n"


def test_files_in_the_way_of_the_output_are_inputs_still(published, tmp_path, make):
    shutil.copytree(published, tmp_path / "data")
    own = write(tmp_path / "data" / "sources" / "gsm8k.jsonl", gsm8k(140))
    shutil.rmtree(tmp_path / "data" / "openai")
    before = own.read_bytes()
    status, _, error = make(tmp_path / "data", tmp_path / "data", "--force")
    assert status == 1 and "gsm8k.jsonl to write, which is the input" in error and own.read_bytes() == before


def test_one_command_at_a_time(published, tmp_path, make):
    import fcntl

    with (tmp_path / ".make.lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        status, _, error = make(tmp_path, published)
    assert status == 1 and "found another command at work" in error and contents(tmp_path) == {}
