"""The corpus that is searched: checked, converted, and searched for answers; and the one made of the Factbook."""

import gzip
import json
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_sets import write

from rft.data import __main__ as command
from rft.data.row_files import read_rows
from rft.data.search import corpus, factbook
from rft.data.search.questions import Question, question_row
from rft.data.search.recall import Recall
from rft.grading.short_answer import normalized
from rft.record.digest import file_sha256
from rft.retriever.corpus import document_of, fields_of
from rft.retriever.places import open_corpus

ROWS = [
    {"id": "0", "contents": '"Brun"\nBrun is the capital of Orrin. Its harbour was opened in 1901.'},
    {"id": "1", "contents": '"The "Long" Song"\nWritten by Ilse Varga (1820-1871).\nSung in harbours.'},
    {"id": "2", "contents": '"Sarn"\nPuffins nest on its cliffs; the lighthouse-keeper counts them.'},
]  # fmt: skip


@pytest.fixture
def run(monkeypatch, capsys):
    """The command in this process: exit status, standard output, standard error."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rft.data", "corpus", *map(str, words)])
        return command.main(), *capsys.readouterr()

    return call


def asked(path: Path, *answers: tuple[str, ...]) -> Path:
    """An evaluation file of questions with these answers."""
    return write(
        path, [question_row(Question(f"q/{i}", f"what {i}?", a, "q"), "search") for i, a in enumerate(answers)]
    )


def test_a_sound_corpus_is_counted_and_hashed(tmp_path, run):
    path = write(tmp_path / "wiki.jsonl", ROWS)
    status, printed, error = run(path)
    assert status == 0 and error == ""
    assert f"{path}: 3 passages, 58 characters on average, 62 the longest" in printed
    served = open_corpus(path, tmp_path / "index", lambda *_: None)
    assert f"sha256 {served.sha256}" in printed and len(served) == 3
    assert "0 without title, 0 with the title and text" in printed


@pytest.mark.parametrize("form", ["jsonl", "gz", "title and text", "without ids", "numbers as ids"])
def test_every_form_is_converted_to_one(tmp_path, run, form):
    wanted = write(tmp_path / "wanted.jsonl", ROWS).read_bytes()
    rows = ROWS
    if form in ("title and text", "without ids"):
        rows = [
            dict(zip(("id", "title", "text"), (r["id"], *corpus.fields_of(json.dumps(r).encode())[1:]), strict=True))
            for r in ROWS
        ]
        rows = [{k: v for k, v in r.items() if k != "id"} for r in rows] if form == "without ids" else rows
    elif form == "numbers as ids":
        rows = [row | {"id": int(row["id"])} for row in ROWS]
    source, out = write(tmp_path / "source.jsonl", rows), tmp_path / "out.jsonl"
    if form == "gz":
        source = tmp_path / "source.jsonl.gz"
        source.write_bytes(gzip.compress(wanted))
    status, printed, error = run(source, "--out", out)
    assert status == 0, error
    assert out.read_bytes() == wanted and f"sha256 {file_sha256(out)}" in printed
    assert ("rows have no ids" in printed) == (form == "without ids")
    assert run(source, "--out", out)[0] == 0  # the same again is no change
    out.write_text("mine\n")
    status, _, error = run(source, "--out", out)
    assert status == 1 and "with another content, wanted a new file" in error and out.read_text() == "mine\n"
    assert run(source, "--out", out, "--force")[0] == 0 and out.read_bytes() == wanted


def test_rows_without_text_are_named_and_left_out_of_a_conversion(tmp_path, run):
    rows = [ROWS[0], {"id": "7", "contents": '"Nothing"\n  '}, ROWS[1]]
    path = write(tmp_path / "wiki.jsonl", rows)
    status, printed, error = run(path)
    assert status == 2 and f"{path}, line 2: found no text behind the title 'Nothing'" in error
    assert "2 passages" in printed and "1 rows: no text" in printed
    assert run(path, "--out", tmp_path / "out.jsonl")[0] == 0
    assert [row["id"] for _, row in read_rows(tmp_path / "out.jsonl")] == ["0", "1"]


FAULTS = {
    "no JSON": ("{", "not JSON"),
    "no object": ("[1]", "wanted a JSON object"),
    "not UTF-8": (b'{"id": "3", "contents": "\xff"}', "wanted UTF-8"),
    "other fields": ({"id": "3", "body": "x"}, "found fields ['body', 'id'], wanted 'id' and 'contents'"),
    "contents that are no text": ({"id": "3", "contents": ["x"]}, "field 'contents' is ['x']"),
    "text that is none": ({"id": "3", "title": "x", "text": None}, "field 'text' is None, wanted text"),
    "a surrogate": ({"id": "3", "contents": "x\n\ud800"}, "field 'text' is "),
    "an id with a surrogate": ({"id": "\ud800", "contents": "x\ny"}, "field 'id' is "),
    "an id that is none": ({"id": [3], "contents": "x\ny"}, "field 'id' is [3], wanted a string or a number"),
    "no id": ({"contents": "x\ny"}, "found an id in some rows only, wanted it in all or none"),
    "an id twice": ({"id": "1", "contents": "x\ny"}, "found id '1', which passage 2 has too; make ids unique"),
}


def test_what_is_checked_is_what_the_retriever_serves(tmp_path):
    lines = [
        json.dumps(row).encode() for row in (*ROWS, {"id": 7, "contents": "one line"}, {"title": "T", "text": "x"})
    ]
    for line in lines:
        served = document_of(line, "0")
        assert fields_of(line)[1:] == (served["title"], served["text"])


@pytest.mark.parametrize(("row", "words"), FAULTS.values(), ids=FAULTS)
def test_a_bad_row_is_named_by_its_line_and_nothing_is_converted(tmp_path, run, row, words):
    path, out = write(tmp_path / "wiki.jsonl", ROWS), tmp_path / "out.jsonl"
    line = row if isinstance(row, bytes) else row.encode() if isinstance(row, str) else json.dumps(row).encode()
    path.write_bytes(path.read_bytes() + line + b"\n")
    status, _, error = run(path)
    assert status == 2 and len(error.splitlines()) == 1 and f"{path}, line 4: " in error and words in error, error
    status, _, error = run(path, "--out", out)
    assert status == 1 and f"{path}, line 4: " in error and words in error, error
    assert not out.exists() and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.jsonl", None, "found no file"),
        ("empty.jsonl", b"", "found an empty file"),
        ("cut.jsonl.gz", gzip.compress(b"{}\n" * 9999)[:-9], "cannot be unpacked"),
        ("none.jsonl.gz", b"{}", "cannot be unpacked"),
    ],
)
def test_a_file_that_is_no_corpus_is_one_message(tmp_path, run, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    status, _, error = run(tmp_path / name)
    assert status == 1 and words in error and len(error.splitlines()) == 1


def test_an_output_over_the_input_is_refused(tmp_path, run):
    path = write(tmp_path / "wiki.jsonl", ROWS)
    status, _, error = run(path, "--out", path)
    assert status == 1 and "which is the input" in error
    assert run(path, "--out", tmp_path / "wiki.tsv")[2].startswith("error: found --out")


def test_many_faults_are_counted(tmp_path, run):
    path = write(tmp_path / "wiki.jsonl", [*ROWS, *({"id": str(i)} for i in range(50))])
    status, printed, error = run(path)
    assert status == 2 and len(error.splitlines()) == 21 and "and 30 more" in error and "50 rows: no passage" in printed


def test_whose_answers_a_corpus_holds(tmp_path, run):
    path = write(tmp_path / "wiki.jsonl", ROWS)
    file = asked(
        tmp_path / "held_out.jsonl",
        ("The Harbour was opened", "x"),  # words in a row, whatever their case and articles
        ("Orrin its",),  # over the end of a sentence, as the grader normalises it
        ("Long Song",),  # of a title
        ("lighthouse keeper",),  # the grader joins what a hyphen joins
        ("capital Orrin",),
        ("190",),
        ("yes",),
    )
    status, printed, _ = run(path, "--answers", file)
    assert status == 0
    assert "held_out: 50.0% of 6 questions have an answer that the corpus holds\n    not: q/3, q/4, q/5\n" in printed
    status, _, error = run(path, "--answers", path)
    assert status == 1 and "found no row of the search task" in error


WORDS = st.lists(
    st.sampled_from(["a", "bay", "Bay.", "of", "kel mar", "the", "kel", "mar", "1901", "-", "yes"]), max_size=8
)


@given(
    st.lists(st.lists(WORDS.map(" ".join), min_size=1, max_size=3), max_size=4),
    st.lists(WORDS.map(" ".join), max_size=4),
)
def test_answers_are_found_where_a_plain_search_finds_them(answers, texts):
    questions = [Question(str(i), "?", tuple(each), "q") for i, each in enumerate(answers)]
    recall = Recall({"q": questions})
    for text in texts:
        recall.read(text)
    (found,) = recall.found()
    telling = {q.id: {normalized(a) for a in q.answers} - {"", "yes", "no"} for q in questions}
    held = {
        name: any(f" {answer} " in f" {normalized(text)} " for answer in each for text in texts)
        for name, each in telling.items()
        if each
    }
    assert (found.questions, found.found) == (len(held), sum(held.values()))
    assert found.missing == [name for name, is_held in held.items() if not is_held]


FIELDS = st.dictionaries(
    st.sampled_from(["id", "contents", "title", "text"]),
    st.none() | st.integers() | st.text(max_size=9) | st.just(["x"]),
)


@given(st.lists(FIELDS, max_size=6))
def test_what_is_converted_is_sound_and_says_the_same(tmp_path_factory, rows):
    place = tmp_path_factory.mktemp("corpus")
    source, out = write(place / "source.jsonl", rows), place / "out.jsonl"
    try:
        summary, _ = corpus.convert(source, out, [], False)
    except ValueError as error:
        assert "\n" not in str(error) and not out.exists()
        return
    again = corpus.Summary()
    assert summary.passages == sum(1 for _ in corpus.passages(out, again)) and not again.counts
    first, second = (list(corpus.passages(path, corpus.Summary())) for path in (source, out))
    assert [(p.id, " ".join(p.title.splitlines()), p.text) for p in first] == [(p.id, p.title, p.text) for p in second]


def test_a_corpus_is_never_in_memory(tmp_path):
    path = tmp_path / "wiki.jsonl"
    with path.open("w") as stream:
        for number in range(20_000):
            stream.write(json.dumps({"id": str(number), "contents": f'"Title {number}"\n{"word " * 100}'}) + "\n")
    tracemalloc.start()
    summary, _ = corpus.read(path, [])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert summary.passages == 20_000 and summary.copies() == 0
    assert peak < path.stat().st_size / 5  # hashes of 16 bytes, and sorted copies of them, for 530 of a line


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("factbook")
    list(factbook.make(place, "tags", False))
    return place


def test_the_factbook_answers_its_questions(made, run, monkeypatch):
    train, held_out = made / factbook.TRAIN, made / factbook.HELD_OUT
    status, printed, error = run(made / factbook.CORPUS, "--answers", train, "--answers", held_out)
    assert status == 0, error
    assert "factbook_train: 100.0% of" in printed and "factbook_test: 100.0% of" in printed
    monkeypatch.setattr(sys, "argv", ["rft.data", "check", "--disjoint", str(train), str(held_out)])
    assert command.main() == 0
    names = [{row["id"].split("/")[1] for _, row in read_rows(path)} for path in (train, held_out)]
    assert not names[0] & names[1] and len(names[0]) > 2 * len(names[1]) > 50
    rows = {row["id"]: row for path in (train, held_out) for _, row in read_rows(path)}
    assert json.loads(rows["factbook/France/capital"]["label"])["answers"] == ["Paris"]
    hop = rows["factbook/Algeria/by-capital/peak"]
    assert hop["input"][1]["content"] == "What is the highest point of the country whose capital is Algiers?"
    assert len(rows) > 1000


def test_the_factbook_is_the_same_again(made, tmp_path):
    list(factbook.make(tmp_path, "tags", False))
    for name in (factbook.CORPUS, factbook.TRAIN, factbook.HELD_OUT, factbook.MANIFEST):
        assert (tmp_path / name).read_bytes() == (made / name).read_bytes()
    (tmp_path / factbook.CORPUS).write_text("mine\n")
    with pytest.raises(ValueError, match="with another content"):
        factbook.make(tmp_path, "tags", False)
    assert (tmp_path / factbook.CORPUS).read_text() == "mine\n"
