"""Corpora by their places, and indexes that are made, interrupted, opened, refused."""

import hashlib
import json
import shlex
import signal
import subprocess
import sys

import numpy as np
import pytest
from retrievers import HOSTILE, corpus_of
from served_processes import ROOT, environment, module

from rft.retriever import vectors
from rft.retriever.engine import Options, open_engine
from rft.retriever.places import open_corpus
from rft.retriever.wordllama import WordLlama


def ignored(*_: object) -> None:
    """Progress that nobody reads."""


def written(place, text: str | bytes):
    file = place / "corpus.jsonl"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


ROW = '{"id": "a", "contents": "\\"T\\"\\ntext"}'
FORMS = [
    ("wiki-18", ROW, ("a", '"T"\ntext', "T", "text")),
    ("several lines", '{"id": "a", "contents": "\\"T\\"\\none\\ntwo"}', ("a", '"T"\none\ntwo', "T", "one\ntwo")),
    ("no title", '{"id": 5, "contents": "text alone"}', ("5", "text alone", "", "text alone")),
    ("quotes inside", '{"id": "a", "contents": "\\"a \\"b\\"\\"\\nt"}', ("a", '"a "b""\nt', 'a "b"', "t")),
    ("title and text", '{"title": "T", "text": "t"}', ("0", '"T"\nt', "T", "t")),
    ("an id that is none", '{"id": null, "text": "t"}', ("0", '""\nt', "", "t")),
    ("surrogate", '{"text": "\\ud800\\u0000"}', ("0", '""\n\ud800\0', "", "\ud800\0")),
]


@pytest.mark.parametrize("row, document", [each[1:] for each in FORMS], ids=[each[0] for each in FORMS])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_forms_of_rows(tmp_path, row, document, end):
    corpus = open_corpus(written(tmp_path, row + end), tmp_path / "index", ignored)
    assert len(corpus) == 1
    assert corpus.document(0) == dict(zip(("id", "contents", "title", "text"), document, strict=True))


def test_a_corpus_is_read_by_its_places(tmp_path, monkeypatch):
    monkeypatch.setattr("rft.retriever.places.BLOCK", 1000)
    file = corpus_of(tmp_path)
    corpus = open_corpus(file, tmp_path / "index", ignored)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(corpus) == len(rows) and corpus.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert [corpus.document(n)["id"] for n in range(len(corpus))] == [row["id"] for row in rows]
    assert corpus.document(302)["text"] == f"oddity2 {HOSTILE[2]}"
    told = []
    assert open_corpus(file, tmp_path / "index", lambda *each: told.append(each)).sha256 == corpus.sha256
    assert told == []
    with file.open("a") as stream:
        stream.write(ROW + "\n")
    assert len(open_corpus(file, tmp_path / "index", ignored)) == len(rows) + 1


WRONG = [
    ("empty", "", "empty"),
    ("no JSON", f"{ROW}\nno\n", "line 2: not JSON"),
    ("a blank line", f"{ROW}\n\n{ROW}\n", "line 2: found a blank line"),
    ("no UTF-8", b'{"text": "\xff"}\n', "line 1: found byte 0xff"),
    ("other fields", '{"body": "x"}\n', "line 1: found {'body': 'x'}; wanted texts"),
    ("text that is none", '{"text": 5}\n', "wanted texts"),
    ("contents that are none", '{"contents": ["x"]}\n', "wanted texts"),
    ("an id that is no name", '{"id": true, "text": "t"}\n', "wanted texts"),
    ("nothing in it", '{"title": " ", "text": ""}\n', "found neither title nor text"),
    ("a cut line", ROW[:20], "may be cut"),
]


@pytest.mark.parametrize("text, said", [each[1:] for each in WRONG], ids=[each[0] for each in WRONG])
@pytest.mark.parametrize("index", ["dense", "bm25"])
def test_a_wrong_corpus_is_named_by_its_line(tmp_path, text, said, index):
    with pytest.raises(ValueError, match=r"corpus\.jsonl") as caught:
        open_engine(Options(written(tmp_path, text), index), ignored)
    assert said in str(caught.value)


@pytest.mark.parametrize("name, said", [("none.jsonl", "found no file"), ("corpus.jsonl.gz", "unpack")])
def test_a_corpus_that_cannot_be_read_by_places(tmp_path, name, said):
    (tmp_path / "corpus.jsonl.gz").write_bytes(b"x")
    with pytest.raises(ValueError, match=said):
        open_engine(Options(tmp_path / name, "bm25", index_dir=tmp_path / "index"), ignored)


def test_a_killed_build_goes_on_where_it_was(tmp_path):
    """The process is killed, by SIGKILL, when it begins its fourth file."""
    file = corpus_of(tmp_path)
    code = (
        "import os, signal\nfrom pathlib import Path\nfrom rft.retriever import vectors, engine\n"
        "from rft.retriever.wordllama import WordLlama\nvectors.ROWS, WordLlama.batch = 64, 32\n"
        "def stop(what, done, of):\n    if done >= 224: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"engine.open_engine(engine.Options(Path({str(file)!r}), 'dense'), stop)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder = tmp_path / "corpus.dense-wordllama"
    files = sorted(folder.glob("vectors_*.npy"))
    assert [each.name for each in files] == [f"vectors_{n:05d}.npy" for n in range(3)]
    before = [(each.stat().st_ino, each.stat().st_mtime_ns) for each in files]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "ROWS", 64)
        engine = open_engine(Options(file, "dense"), ignored)
    assert [(each.stat().st_ino, each.stat().st_mtime_ns) for each in files] == before
    assert [np.load(each).shape for each in sorted(folder.glob("vectors_*.npy"))] == [(64, 256)] * 4 + [(48, 256)]
    whole = WordLlama().passages(engine.corpus.texts(0, len(engine.corpus)))
    assert np.array_equal(np.concatenate([np.load(each) for each in sorted(folder.glob("vectors_*.npy"))]), whole)
    assert not list(folder.glob("*.partial"))


def made(place, *arguments: str) -> subprocess.CompletedProcess:
    """The command, which makes the index and ends."""
    command = module("rft.retriever", "--build-only", *arguments)
    return subprocess.run(command, cwd=place, env=environment(), capture_output=True, text=True)


OTHERS = [
    ("another corpus", ["--index", "dense"], "corpus: found"),
    ("another index", ["--index", "bm25"], "index: found 'dense', wanted 'bm25'"),
]


@pytest.mark.parametrize("arguments, said", [each[1:] for each in OTHERS], ids=[each[0] for each in OTHERS])
def test_an_index_of_something_else_is_refused_with_what_repairs_it(tmp_path, arguments, said):
    file = corpus_of(tmp_path, 20)
    folder = tmp_path / "an index"
    assert made(ROOT, "--corpus", str(file), "--index", "dense", "--index-dir", str(folder)).returncode == 0
    if "corpus" in said:
        corpus_of(tmp_path, 21)
    before = {each.name: each.read_bytes() for each in folder.glob("vectors_*.npy")}
    done = made(ROOT, "--corpus", str(file), *arguments, "--index-dir", str(folder))
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr
    assert {each.name: each.read_bytes() for each in folder.glob("vectors_*.npy")} == before
    repair = done.stderr.partition("make it anew: ")[2].strip()
    assert repair.startswith(f"rm -r {shlex.quote(str(folder))} && .venv/bin/python -m rft.retriever")
    repair = repair.replace(".venv/bin/python", sys.executable)  # of another stack's environment too
    again = subprocess.run(repair, shell=True, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("index", ["dense", "bm25"])
def test_a_corpus_that_was_refused_is_corrected_and_nothing_has_to_be_removed(tmp_path, index):
    file = tmp_path / "corpus.jsonl"
    for text, status in (('\ufeff{"title": "a", "text": "b"}\n', 1), ('{"title": "a", "text": "b"}\n', 0)):
        file.write_text(text)
        done = made(ROOT, "--corpus", str(file), "--index", index)
        assert done.returncode == status, done.stderr


def test_a_file_of_vectors_of_another_shape_is_refused(tmp_path):
    file = corpus_of(tmp_path, 20)
    open_engine(Options(file, "dense"), ignored)
    np.save(tmp_path / "corpus.dense-wordllama" / "vectors_00000.npy", np.zeros((3, 256), dtype=np.float32))
    with pytest.raises(ValueError, match=r"found float32 of shape \(3, 256\); wanted float32 of \(24, 256\)"):
        open_engine(Options(file, "dense"), ignored)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "index").write_text("a file")
    done = made(
        ROOT, "--corpus", str(corpus_of(tmp_path, 5)), "--index", "bm25", "--index-dir", str(tmp_path / "index")
    )
    assert done.returncode == 1 and str(tmp_path / "index") in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("index", ["dense", "bm25"])
def test_no_torch_where_the_index_needs_none(tmp_path, index):
    code = (
        "import sys\nfrom pathlib import Path\nfrom rft.retriever import cli, serve, engine\n"
        f"found = engine.open_engine(engine.Options(Path({str(corpus_of(tmp_path, 5))!r}), {index!r}), print)\n"
        "found.search(['mark3'], 2)\nprint('imported:', *sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    imported = set(done.stdout.partition("imported:")[2].split())
    assert done.returncode == 0 and "numpy" in imported, done.stderr
    assert not {"torch", "transformers", "vllm", "ray"} & imported


def test_a_corpus_is_not_held_in_memory(tmp_path):
    """128 passages of 2 MB; the process that makes and searches their index grows by less than that."""
    file = corpus_of(tmp_path, 20, ["word " * 400_000] * 128)
    code = (
        "import resource\nfrom pathlib import Path\nfrom rft.retriever import engine, nearest, wordllama\n"
        f"options = engine.Options(Path({str(file)!r}), 'dense')\nwordllama.WordLlama().passages(['warm'])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "found = engine.open_engine(options, print).search(['mark3', 'word'], 2)\n"
        "print('grown:', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.partition("grown:")[2]) << 10 < file.stat().st_size


@pytest.mark.parametrize("text", ["", " ", "\ud800", "\0", "word " * 100_000])
def test_any_text_has_a_vector(text):
    found = WordLlama().passages([text, "a word"])
    assert found.shape == (2, 256) and found.dtype == np.float32 and np.isfinite(found).all()
    assert np.array_equal(found[1], WordLlama().queries(["a word"])[0])
    assert np.linalg.norm(found[1]) == pytest.approx(1)


def test_a_wanted_passage_comes_first(tmp_path):
    engine = open_engine(Options(corpus_of(tmp_path), "dense"), ignored)
    text = engine.corpus.document(123)["contents"]
    found = engine.search([text, "title 7"], 3)
    assert found[0][0].document["id"] == "p123" and found[0][0].score == pytest.approx(1)
    assert [len(each) for each in found] == [3, 3] and engine.encoder == "wordllama" and engine.index == "dense/flat"
