"""NuminaMath rows to disjoint training files: stages, formats, determinism."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contest import AIME
from published_sets import GOOD, numina

from rft.data.canonical import integer_label
from rft.data.check import check_file
from rft.data.prepare import Sizes, prepare
from rft.data.row_files import read_rows
from rft.data.stages import row_fault, stage_table, worked_solution
from rft.problems import problem_row, problem_text

ROOT = Path(__file__).resolve().parents[2]


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def eval_file(path: Path) -> Path:
    return write_jsonl(path, [problem_row(AIME, "60", "aime/1983-1-1", "aime")])


SIZES = Sizes(train=20, dev=5, rl_pool=60, subset=10)
FILES = ("sft_train.jsonl", "sft_dev.jsonl", "sft_rl_pool.jsonl", "sft_rl_pool_10.jsonl", "sft_manifest.json")


@pytest.mark.parametrize(
    ("change", "stage"),
    [
        ({"question_type": "MCQ"}, "math_word_problem"),
        ({"question_type": None}, "math_word_problem"),
        ({"answer": "proof"}, "integer_answer"),
        ({"answer": "notfound"}, "integer_answer"),
        ({"answer": None}, "integer_answer"),
        ({"answer": "\\frac{1}{2}"}, "integer_answer"),
        ({"answer": "4.0"}, "integer_answer"),
        ({"answer": "9 sheep"}, "integer_answer"),
        ({"answer": "9, 10"}, "integer_answer"),
        ({"source": "amc_aime"}, "not_amc_aime"),
        ({"problem_is_valid": "No"}, "valid"),
        ({"problem_is_valid": "Incomplete"}, "valid"),
        ({"solution_is_valid": None}, "valid"),
        ({"solution": "  "}, "valid"),
        ({"problem": "half a character \ud83d is no text"}, "valid"),
        ({}, None),
        ({"answer": "$1{,}000$"}, None),
        ({"answer": "\\boxed{9}", "source": None}, None),
    ],
)
def test_each_filter_rejects_its_rows(change, stage):
    fault = row_fault(GOOD | change)
    assert (fault and fault[0]) == stage


@pytest.mark.parametrize(
    ("answer", "label"),
    [("042", "42"), ("-7", "-7"), ("+7", "7"), ("-0", "0"), ("1,234,567", "1234567"), ("$12$", "12"), ("12,34", None),
     ("0,125", None), ("0{,}125", None), ("-0,250", None), ("00,123", None), ("-10{,}125", "-10125"), ("007", "7"),
     ("٤٢", None), ("1e3", None), ("x=3", None), ("", None), ("9" * 400, "9" * 400)],
)  # fmt: skip
def test_labels_are_plain_integers(answer, label):
    assert integer_label(answer) == label


def test_solutions_to_imitate_end_with_the_boxed_label():
    assert worked_solution("So $\\boxed{9}$.", "9") == "So $\\boxed{9}$."
    assert worked_solution("So $\\boxed{9}$ sheep.", "9").endswith("The answer is $\\boxed{9}$.")
    assert worked_solution("So $\\boxed{1,000}$.", "1000").endswith("\\boxed{1000}$.")
    assert worked_solution("So $\\boxed{8}$.", "9") is None
    assert worked_solution("So 9.", "9") is None
    assert worked_solution("First $\\boxed{9}$, then $\\boxed{", "9") is None


def test_stage_counts_add_up():
    from collections import Counter

    table = stage_table(10, Counter({("valid", "no problem"): 2, ("math_word_problem", "MCQ"): 3, ("valid", "x"): 1}))
    assert [s["remaining"] for s in table] == [10, 7, 7, 7, 4, 4, 4, 4, 4]
    assert table[0]["stage"] == "start" and table[4]["dropped"] == {"no problem": 2, "x": 1}


def test_files_are_disjoint_counted_and_the_same_from_every_format(tmp_path):
    rows = [
        *numina(200), GOOD | {"question_type": "proof"}, GOOD | {"problem_is_valid": "No"},
        *numina(3), numina(1)[0] | {"problem": f"  {numina(6)[5]['problem'].upper()}", "answer": "1"},
        GOOD | {"problem": f"In 1983: {AIME}", "answer": "60", "solution": "$\\boxed{60}$"},
    ]  # fmt: skip
    sources = {"jsonl": write_jsonl(tmp_path / "rows.jsonl", rows), "parquet": tmp_path / "rows.parquet"}
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, sources["parquet"], row_group_size=50)
    for kind, name in (("stream", "stream.arrow"), ("file", "file.arrow")):
        sources[kind] = tmp_path / name
        with getattr(pa.ipc, f"new_{kind}")(sources[kind], table.schema) as writer:
            writer.write_table(table)
    import datasets

    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    sources["saved"] = tmp_path / "saved"
    evaluation = eval_file(tmp_path / "aime.jsonl")
    outs = {}
    for kind, source in sources.items():
        outs[kind] = tmp_path / f"out-{kind}"
        manifest = prepare(str(source), None, [evaluation], SIZES, 42, outs[kind])
    left = {s["stage"]: s["remaining"] for s in manifest["stages"]}
    assert left == {
        "start": 207, "math_word_problem": 206, "integer_answer": 206, "not_amc_aime": 206, "valid": 205,
        "unique": 201, "long_enough": 201, "decontaminated": 200, "one_answer": 199,
    }  # fmt: skip
    (rejected,) = manifest["decontamination"]["rejected"]
    assert rejected["row"] == 207 and rejected["against"] == "aime/1983-1-1" and rejected["reason"] == "13-gram"
    assert len(manifest["overlap"]) == 6 and set(manifest["overlap"].values()) == {0}
    for name in FILES[:4]:
        data = (outs["jsonl"] / name).read_bytes()
        assert all((out / name).read_bytes() == data for out in outs.values())
        assert check_file(outs["jsonl"] / name)[0] == []
    again = prepare(str(sources["jsonl"]), None, [evaluation], SIZES, 42, tmp_path / "again")
    assert [(tmp_path / "again" / n).read_bytes() for n in FILES] == [(outs["jsonl"] / n).read_bytes() for n in FILES]
    pool = [row for _, row in read_rows(outs["jsonl"] / "sft_rl_pool.jsonl")]
    assert [row for _, row in read_rows(outs["jsonl"] / "sft_rl_pool_10.jsonl")] == pool[:10]
    _, worked = next(read_rows(outs["jsonl"] / "sft_train.jsonl"))
    (turn,) = worked["output"]  # the solution is the reasoning, the box alone the answer
    assert turn["content"] == f"\\boxed{{{worked['label']}}}" and turn["content"] in turn["thinking"]
    assert turn["thinking"] != turn["content"]
    assert numina(6)[5]["problem"] not in {problem_text(row) for row in pool}  # its copies state different answers
    assert sorted(p.name for p in (tmp_path / "again").iterdir()) == sorted(FILES)
    assert again["files"]["sft_rl_pool.jsonl"]["rows"] == 60


def test_sample_depends_on_the_seed_and_not_on_the_order_of_rows(tmp_path):
    rows = numina(150)
    forward, backward = (
        write_jsonl(tmp_path / f"{n}.jsonl", r) for n, r in (("forward", rows), ("backward", rows[::-1]))
    )
    for name, source, seed in (("a", forward, 1), ("b", backward, 1), ("c", forward, 2)):
        prepare(str(source), None, [], SIZES, seed, tmp_path / name)
    pools = [(tmp_path / name / "sft_rl_pool.jsonl").read_bytes() for name in "abc"]
    assert pools[0] == pools[1] != pools[2]


def test_a_rerun_with_other_sizes_leaves_no_file_that_overlaps(tmp_path):
    source, out = str(write_jsonl(tmp_path / "rows.jsonl", numina(200))), tmp_path / "out"
    prepare(source, None, [], SIZES, 1, out)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    with pytest.raises(ValueError, match="pass smaller --sft-size"):
        prepare(source, None, [], Sizes(0, 0, 500, 30), 2, out)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    (out / "notes.jsonl").write_text("mine\n")
    prepare(source, None, [], Sizes(0, 0, 90, 30), 2, out)
    left = {"sft_rl_pool.jsonl", "sft_rl_pool_30.jsonl", "sft_manifest.json", "notes.jsonl"}
    assert {p.name for p in out.iterdir()} == left
    # What no manifest describes is not ours to remove.
    (out / "sft_rl_pool_30.jsonl").write_text("edited\n")
    with pytest.raises(ValueError, match=r"sft_rl_pool_30\.jsonl, which this command would not write"):
        prepare(source, None, [], SIZES, 1, out)
    (out / "sft_manifest.json").write_text("[]")
    with pytest.raises(ValueError, match=r"sft_manifest\.json: found no manifest of ours"):
        prepare(source, None, [], SIZES, 1, out)
    assert {p.name for p in out.iterdir()} == left


def test_parquet_text_that_is_not_utf8_is_named_by_row_and_column(tmp_path):
    from rft.data.numina import read_numina

    rows = numina(9)
    table = pa.Table.from_pylist(rows)
    raw = pa.array([row["solution"].encode() for row in rows[:8]] + [b"caf\xe9"]).view(pa.string())
    pq.write_table(table.set_column(table.schema.get_field_index("solution"), "solution", raw), tmp_path / "r.parquet")
    with pytest.raises(ValueError, match=r"r\.parquet, row 9: column 'solution' has byte 0xe9 at 4, wanted UTF-8"):
        list(read_numina(str(tmp_path / "r.parquet")))


@pytest.fixture
def run(monkeypatch, capsys):
    """The command, in this process: exit status, standard output, standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["prepare_sft_data.py", *map(str, arguments)])
        try:
            status = runpy.run_path(str(ROOT / "data" / "prepare_sft_data.py"))["main"]()
        except SystemExit as stop:
            status = stop.code
        return status, *capsys.readouterr()

    return call


def test_command_prints_the_stages(tmp_path, run):
    source = write_jsonl(tmp_path / "rows.jsonl", numina(90))
    sizes = ("--sft-size", 10, "--dev-size", 5, "--rl-pool-size", 50, "--subset-size", 20, "--seed", 7)
    status, printed, _ = run("--source", source, "--no-eval-set", *sizes, "--out", tmp_path / "out")
    assert status == 0
    assert [line.split()[0] for line in printed.splitlines()[:3]] == ["start", "math_word_problem", "integer_answer"]
    assert (tmp_path / "out" / "sft_rl_pool_20.jsonl").is_file()
    assert run("--source", source, "--out", tmp_path / "other")[0] == 2  # an evaluation set, or a plain no


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.jsonl", b"", "empty file"),
        ("rows.jsonl", b'{"question": "1+1?"}\n', "found columns ['question'], wanted also ['problem'"),
        ("rows.jsonl", json.dumps(GOOD).encode() + b"\n{broken\n", "line 2: not JSON"),
        (
            "rows.jsonl",
            json.dumps(GOOD | {"problem_is_valid": True}).encode(),
            "row 1: column 'problem_is_valid' is True",
        ),
        ("rows.jsonl", json.dumps(GOOD).encode() + b'\n{"problem": "caf\xe9"}\n', "line 2: found byte 0xe9"),
        ("rows.jsonl", b'{"a": ' + b"[" * 100_000, "line 1: found hundreds of nested brackets"),
        ("rows.parquet", b"PAR1 and then nothing", "cannot be read"),
        ("rows.arrow", b"nothing", "cannot be read"),
        ("rows.csv", b"problem,answer\n", "wanted a .parquet, .jsonl or .arrow file"),
        ("rows.jsonl", (json.dumps(GOOD) + "\n").encode(), "found 1 problems"),
    ],
)
def test_bad_input_gets_one_message_and_leaves_the_old_files(tmp_path, run, name, content, words):
    out = tmp_path / "out"
    out.mkdir()
    (out / "sft_train.jsonl").write_text("older\n")
    (tmp_path / name).write_bytes(content)
    status, _, message = run("--source", tmp_path / name, "--no-eval-set", "--out", out)
    assert status == 2
    assert words in message and len(message.splitlines()) == 1
    assert {p.name: p.read_text() for p in out.iterdir()} == {"sft_train.jsonl": "older\n"}


def test_no_input_is_written_over(tmp_path):
    source = write_jsonl(tmp_path / "sft_rl_pool.jsonl", numina(120))
    evaluation = eval_file(tmp_path / "sft_dev.jsonl")
    other = write_jsonl(tmp_path / "rows.jsonl", numina(120))
    before = [path.read_bytes() for path in (source, evaluation)]
    for rows, held_out in ((str(source), []), ([source], []), (str(other), [evaluation])):
        with pytest.raises(ValueError, match=r"found .* to write, which is the input"):
            prepare(rows, None, held_out, SIZES, 0, tmp_path)
    assert [path.read_bytes() for path in (source, evaluation)] == before


def test_unreadable_sources_are_named():
    from rft.data.numina import read_numina

    with pytest.raises(ValueError, match="found no file nowhere/rows"):
        list(read_numina("nowhere/rows.parquet"))
    with pytest.raises(ValueError, match="correct --source"):
        read_numina("no such thing")


def test_full_disk_leaves_nothing_behind(tmp_path):
    """A file size limit stands in for a full disk: the write fails with an OSError in the same place."""
    source = write_jsonl(tmp_path / "rows.jsonl", numina(90))
    out = tmp_path / "out"
    line = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000)); sys.argv = sys.argv[1:]; "
        "import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    sizes = ("--sft-size", "10", "--dev-size", "5", "--rl-pool-size", "70", "--subset-size", "20")
    script = str(ROOT / "data" / "prepare_sft_data.py")
    done = subprocess.run(
        [sys.executable, "-c", line, script, "--source", source, "--no-eval-set", *sizes, "--out", out],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "File too large" in done.stderr, done.stderr
    assert list(out.iterdir()) == []


def test_made_up_rows_have_the_schema_and_planted_copies_are_found(tmp_path):
    sys.path.insert(0, str(ROOT))
    from benchmarks.numina_rows import SCHEMA, make_rows

    evaluation = eval_file(tmp_path / "aime.jsonl")
    rows = list(make_rows(600, 0, [(AIME, "60")] * 3))
    assert rows == list(make_rows(600, 0, [(AIME, "60")] * 3))
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), tmp_path / "rows.parquet")
    manifest = prepare(str(tmp_path / "rows.parquet"), None, [evaluation], SIZES, 0, tmp_path / "out")
    (exact, embedded) = manifest["decontamination"]["rejected"]  # the second copy is a retyped first: not unique
    assert (exact["reason"], exact["row"], embedded["reason"], embedded["row"]) == ("exact", 150, "13-gram", 450)
    assert manifest["stages"][5]["dropped"]["copy of an earlier problem"] > 1


def test_hub_datasets_are_streamed(tmp_path, monkeypatch):
    """`datasets` takes a local folder for a hub name of the same form: its own reading, without a network."""
    from rft.data.numina import COLUMNS, _checked, _hub

    folder = tmp_path / "org" / "numina" / "data"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(numina(7)), folder / "train-00000-of-00001.parquet")
    monkeypatch.chdir(tmp_path)
    rows = [{c: row[c] for c in COLUMNS} for row in _checked(_hub("org/numina", None), "org/numina")]
    assert rows == [{c: row[c] for c in COLUMNS} for row in numina(7)]
    with pytest.raises(ValueError, match="found no hub dataset org/absent"):
        _hub("org/absent", None)
