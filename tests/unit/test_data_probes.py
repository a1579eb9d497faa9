"""Probe sets from published files, and the format checks of problem files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rft.data.check import check_file
from rft.data.probes import make_probe_sets
from rft.data.published import read_published
from rft.data.row_files import read_rows
from rft.problems import problem_row, problem_text, read_problems

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT.parent / "shared" / "data"


def numbered(template: str, count: int, **fields) -> list[dict]:
    """`count` made-up problems that have no run of words in common but the template."""
    kinds = ("lemon", "marble", "needle", "orchid", "pebble", "quill", "ribbon")
    return [
        {"problem": template.format(f"{kinds[i % 7]} number {i * i + 7}"), "answer": str(i), **fields}
        for i in range(count)
    ]


@pytest.fixture
def sources(tmp_path):
    """Files in the forms that are published: MATH test and train, GSM8K, AIME of two years."""
    test = [
        row | {"unique_id": f"test/algebra/{i}.json"}
        for i, row in enumerate(numbered("Solve {} today.", 300, difficulty=5.0))
    ]
    train = numbered("Weigh {} twice.", 700, difficulty=4.0, type="Algebra") + numbered(
        "Easy {}.", 9, difficulty=3.0, type="Algebra"
    )
    train += [{"problem": "What is missing here?", "answer": None, "difficulty": 5.0, "type": "Algebra"}]
    gsm8k = [
        {"problem": row["problem"], "answer": None, "solution": f"Count.\n#### 1,{i:03d}", "difficulty": -1.0}
        for i, row in enumerate(numbered("Ann buys {} for her aunt.", 140))
    ]
    aime = [
        row | {"year": 2000 + i, "aime_number": 1, "problem_number": 3}
        for i, row in enumerate(numbered("Prove how often {} turns.", 50))
    ]
    aime[24]["problem"] = "How many ways are there to put five rings on two fingers when the order on each matters?"
    train += [{"problem": aime[24]["problem"], "answer": "24", "difficulty": 5.0, "type": "Algebra"}]
    paths = []
    for name, rows in {"test": test, "train": train, "gsm8k": gsm8k, "aime": aime}.items():
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(rows, indent=1))
    return paths


def rows_of(path: Path) -> list[dict]:
    return [row for _, row in read_rows(path)]


def test_probes_are_nested_mixed_and_apart_from_the_held_out_aime(sources, tmp_path):
    manifest = make_probe_sets(sources, None, [], 42, tmp_path / "out")
    files = manifest["files"]
    assert files["probe_set_200_ood.jsonl"]["datasources"] == {"math": 170, "gsm8k": 15, "aime": 15}
    assert files["probe_set_1000_ood.jsonl"]["rows"] == 1000 and files["aime_eval.jsonl"]["rows"] == 26
    small, large, aime = (
        rows_of(tmp_path / "out" / name)
        for name in ("probe_set_200_ood.jsonl", "probe_set_1000_ood.jsonl", "aime_eval.jsonl")
    )
    assert large[:200] == small
    assert [row["id"] for row in aime][:2] == ["aime/2024-1-3", "aime/2025-1-3"]
    held_out = {problem_text(row) for row in aime}
    assert not held_out & {problem_text(row) for row in large}
    assert (
        manifest["dropped"] == {"MATH below level 4": 0, "no answer": 1, "copy": 1} or manifest["dropped"]["copy"] == 1
    )
    assert all(row["id"].startswith("math/test/algebra/") for row in small if row["datasource"] == "math")
    assert {row["label"] for row in large if row["datasource"] == "gsm8k"} <= {str(1000 + i) for i in range(140)}
    for name in files:
        assert check_file(tmp_path / "out" / name)[0] == []
        assert read_problems(tmp_path / "out" / name)


def test_probes_do_not_depend_on_the_order_of_the_files(sources, tmp_path):
    first = make_probe_sets(sources, None, [], 42, tmp_path / "a")["files"]
    assert make_probe_sets(sources[::-1], None, [], 42, tmp_path / "b")["files"] == first
    other = make_probe_sets(sources, None, [], 43, tmp_path / "c")["files"]
    assert other["probe_set_200_ood.jsonl"]["sha256"] != first["probe_set_200_ood.jsonl"]["sha256"]


def write_pool(path: Path, count: int) -> Path:
    rows = [
        problem_row(f"How heavy are {i} stones of {i + 1} pounds?", str(i * (i + 1)), f"n/{i}", "x")
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_id_probe_comes_from_the_pool_and_leaves_out_what_is_trained_on(tmp_path):
    pool, trained = write_pool(tmp_path / "pool.jsonl", 300), write_pool(tmp_path / "trained.jsonl", 100)
    make_probe_sets([], pool, [trained], 42, tmp_path)
    probe = rows_of(tmp_path / "probe_set_200.jsonl")
    assert len(probe) == 200 and {row["id"] for row in probe} == {f"n/{i}" for i in range(100, 300)}
    with pytest.raises(ValueError, match="found 199 problems outside of --exclude"):
        make_probe_sets([], pool, [write_pool(tmp_path / "trained.jsonl", 101)], 42, tmp_path)


def test_each_kind_of_probe_keeps_its_manifest(sources, tmp_path):
    out = tmp_path / "out"
    make_probe_sets(sources, None, [], 42, out)
    first = (out / "probe_manifest.json").read_bytes()
    pool = write_pool(tmp_path / "pool.jsonl", 200)
    make_probe_sets([], pool, [], 42, out)
    assert (out / "probe_manifest.json").read_bytes() == first
    manifest = json.loads((out / "probe_id_manifest.json").read_text())
    assert list(manifest["files"]) == ["probe_set_200.jsonl"] and [s["name"] for s in manifest["sources"]] == [
        pool.name
    ]
    both = make_probe_sets(sources, pool, [], 42, tmp_path / "both")
    assert len(both["files"]) == 4
    for name in ("probe_manifest.json", "probe_id_manifest.json"):
        assert (tmp_path / "both" / name).read_bytes() == (out / name).read_bytes()
    # Without AIMEs of the held-out years, the earlier held-out set could share problems with the new probes.
    rows = [row | {"year": 1990 + i} for i, row in enumerate(json.loads(sources[3].read_text())[:24])]
    sources[3].write_text(json.dumps(rows))
    make_probe_sets(sources, None, [], 42, out)
    assert not (out / "aime_eval.jsonl").exists() and (out / "probe_set_200.jsonl").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": None}, "line 2: field 'id' is None"),
        ({"input": None}, "line 2: field 'input': found None, wanted text or a list of chat messages"),
        ({"input": [{"role": "assistant", "content": "x"}]}, "the last message is of role 'assistant', wanted 'user'"),
        ({"label": 3}, "line 2: field 'label': found 3, wanted a string"),
        ({"id": ...}, "line 2: field 'id' is absent, but string in the first line"),
        ({"input": ...}, "line 2: field 'input' is missing"),
    ],
)
def test_bad_pools_are_named_by_line_and_field(tmp_path, change, words):
    rows = rows_of(write_pool(tmp_path / "pool.jsonl", 250))
    rows[1] = {name: value for name, value in (rows[1] | change).items() if value is not ...}
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError) as raised:
        make_probe_sets([], tmp_path / "bad.jsonl", [], 42, tmp_path / "out")
    assert words in str(raised.value) and "bad.jsonl, line 2: " in str(raised.value)
    if "label" not in change and "id" not in change:
        with pytest.raises(ValueError, match=r"bad\.jsonl, line 2: "):
            make_probe_sets([], tmp_path / "pool.jsonl", [tmp_path / "bad.jsonl"], 42, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published problems are not here")
def test_probes_of_the_published_files(tmp_path):
    manifest = make_probe_sets(sorted(PUBLISHED.glob("*.json")), None, [], 42, tmp_path)
    assert manifest["files"]["aime_eval.jsonl"]["rows"] == 30
    assert manifest["files"]["probe_set_200_ood.jsonl"]["datasources"] == {"math": 170, "gsm8k": 15, "aime": 15}
    assert manifest["files"]["probe_set_1000_ood.jsonl"]["rows"] == 1000


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "no problems"),
        ("", "empty file"),
        ('[{"text": "1+1"}]', "problem 1: found columns ['text'], wanted 'input' and 'label'"),
        ('[{"problem": "", "answer": "1"}]', "field 'problem' is ''"),
        ('[{"problem": "1+1?", "answer": "2"},]', "not JSON"),
        (
            '{"problem": "1+1?", "answer": "2", "id": "a"}\n{"problem": "1+2?", "answer": "3", "id": "a"}\n',
            "line 2: found id 'a'",
        ),
        ('{"input": "", "label": "2", "id": "a"}\n', "line 1: field 'input'"),
        ('{"input": "1+1?", "label": "2", "id": ["a"]}\n', "line 1: field 'id' is ['a'], wanted a string"),
        ('{"input": "1+1?", "label": "2", "datasource": 3}\n', "line 1: field 'datasource' is 3, wanted a string"),
        ('[{"problem": "1+1?", "answer": "2", "id": ["a"]}]', "problem 1: field 'id' is ['a'], wanted a string or a"),
        ('[{"problem": "1+1?", "answer": "2", "unique_id": 7}]', "problem 1: field 'unique_id' is 7, wanted a string"),
        (
            '[{"problem": "1+1?", "answer": "2", "type": "Algebra", "difficulty": "hard"}]',
            "problem 1: field 'difficulty' is 'hard', wanted 1 to 5",
        ),
        (
            '[{"problem": "1+1?", "answer": "2", "aime_number": 1, "problem_number": 3}]',
            "problem 1: field 'year' is missing, wanted a whole number",
        ),
        (
            '[{"problem": "1+1?", "answer": "2", "aime_number": 1, "problem_number": 3, "year": null}]',
            "problem 1: field 'year' is None, wanted a whole number",
        ),
        (
            '[{"problem": "1+1?", "answer": "2", "aime_number": "III", "problem_number": 3, "year": 2024}]',
            "problem 1: field 'aime_number' is 'III', wanted a whole number",
        ),
        ("[" * 100_000, "bad.json: found hundreds of nested brackets"),
        ('{"a": ' + "[" * 100_000 + "\n", "line 1: found hundreds of nested brackets"),
        ('{"input": "1+1?", "label": ' + "[" * 900 + "]" * 900 + "}\n", "line 1: f"),
        ('[{"problem": "1+1?", "answer": ' + "9" * 5000 + "}]", "bad.json: Exceeds the limit"),
    ],
)
def test_bad_evaluation_files_are_named_by_place_and_field(tmp_path, content, words):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(ValueError) as raised:
        read_published(tmp_path / "bad.json")
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"answer": "2", "type": "Algebra", "level": "Level 5"}, {"label": "2", "level": 5}),
        ({"answer": "2", "type": "Algebra", "difficulty": "Level 4"}, {"level": 4}),
        ({"answer": "2", "unique_id": "test/a/7.json", "level": 4}, {"level": 4, "id": "math/test/a/7"}),
        ({"answer": "2", "type": "Algebra", "level": "Level ?"}, {"level": None}),
        ({"answer": 204.0}, {"label": "204"}),
        ({"answer": 0.5}, {"label": "0.5"}),
        ({"answer": "", "solution": "So \\boxed{7}."}, {"label": "7"}),
        ({"answer": float("nan"), "solution": "So \\boxed{7}."}, {"label": "7"}),
        (
            {"answer": "7", "year": "2024", "aime_number": "II", "problem_number": "6"},
            {"id": "aime/2024-2-6", "year": 2024},
        ),
        ({"answer": "7", "id": 12}, {"id": "12"}),
    ],
)
def test_published_forms_are_read(tmp_path, fields, wanted):
    (tmp_path / "p.json").write_text(json.dumps([{"problem": "How many?"} | fields]))
    (problem,) = read_published(tmp_path / "p.json")
    assert {name: getattr(problem, name) for name in wanted} == wanted


GOOD = problem_row("What is one and one?", "2", "sum/1", "x")


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"input": []}, "field 'input': found []"),
        ({"input": [{"role": "user"}]}, "message 1 is {'role': 'user'}, wanted an object with 'role' and 'content'"),
        ({"input": [{"role": "human", "content": "x"}]}, "message 1 has role 'human'"),
        ({"input": [{"role": "user", "content": " "}]}, "message 1 has content ' '"),
        ({"input": [{"role": "assistant", "content": "x"}]}, "the last message is of role 'assistant', wanted 'user'"),
        ({"input": [{"role": "user", "content": "half \ud800"}]}, "wanted some text"),
        ({"label": ""}, "field 'label': found no answer"),
        ({"label": 2}, "field 'label': found 2, wanted a string"),
        ({"label": "\\frac{1}{2"}, "which the grader cannot parse"),
        ({"id": "sum/1"}, "field 'id': found 'sum/1', which line 1 has too"),
        ({"id": None}, "field 'id' is None"),
        ({"datasource": 3}, "field 'datasource' is integer, but string in the first line"),
        ({"level": 3}, "field 'level' is integer, but absent in the first line"),
        ({"input": GOOD["input"]}, "the same problem as in line 1"),
    ],
)
def test_check_names_line_and_field(tmp_path, second, words):
    other = problem_row("What is one and two?", "3", "sum/2", "x") | second
    (tmp_path / "f.jsonl").write_text(json.dumps(GOOD) + "\n" + json.dumps(other) + "\n")
    faults, _ = check_file(tmp_path / "f.jsonl")
    assert any(words in fault and f"{tmp_path / 'f.jsonl'}, line 2: " in fault for fault in faults), faults


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"\n", "found a blank line"),
        (b'{"input": "caf\xe9", "label": "1"}\n', "found byte 0xe9 at column 15, wanted UTF-8"),
        (b'\xef\xbb\xbf{"input": "x", "label": "1"}\n', "byte order mark"),
        (b'{"input": "x", "label": "1", "label": "2"}\n', "found field 'label' twice"),
        (b'{"input": "x", "label": NaN}\n', "found NaN"),
        (b"[1, 2]\n", "found [1, 2], wanted a JSON object"),
        (b'{"input": "x", "lab', "the file may be cut"),
        (b'{"label": "1"}\n', "field 'input' is missing (found ['label'])"),
    ],
)
def test_check_names_broken_lines(tmp_path, line, words):
    (tmp_path / "f.jsonl").write_bytes(json.dumps({"input": "y", "label": "1"}).encode() + b"\n" + line)
    faults, _ = check_file(tmp_path / "f.jsonl")
    assert any(words in fault and "line 2" in fault for fault in faults), faults


def check(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "rft.data", "check", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_check_command(tmp_path):
    first, second = write_pool(tmp_path / "a.jsonl", 30), write_pool(tmp_path / "b.jsonl", 30)
    done = check(first, second)
    assert done.returncode == 0 and "30 problems, nothing wrong" in done.stdout
    done = check("--disjoint", first, second)
    assert done.returncode == 2 and "b.jsonl, line 1: the same problem as in " in done.stderr
    assert done.stderr.splitlines()[-1] == "and 10 more"
    (tmp_path / "empty.jsonl").touch()
    done = check(tmp_path / "empty.jsonl", tmp_path / "absent.jsonl")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 2
    assert "found an empty file" in done.stderr and "found no file" in done.stderr


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("a", "broken"), "broken.jsonl: not compared with the other files in full"),
        (("a", "absent"), "absent.jsonl: not compared with the other files in full"),
        (("a",), "found 1 file, wanted two or more to compare"),
        (("a", "a"), "found 1 file, wanted two or more to compare"),
        (("a", "link"), "link.jsonl: found the same file as "),
        (("a", "memory"), "memory.jsonl: cannot be read (Input/output error)"),
        (("a", "c"), None),
    ],
)
def test_what_was_not_read_is_not_called_apart(tmp_path, names, words):
    write_pool(tmp_path / "a.jsonl", 3)
    other = [problem_row(f"Another {i}?", str(i), f"c/{i}", "c") for i in range(3)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in other))
    (tmp_path / "broken.jsonl").write_text('{"input": "1+1?", "label": "2", "id": "t"}\n{"input": \n')
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "a.jsonl")
    (tmp_path / "memory.jsonl").symlink_to("/proc/self/mem")  # a file whose first byte cannot be read, by root neither
    command = [sys.executable, "-m", "rft.data", "check", "--disjoint", *(tmp_path / f"{name}.jsonl" for name in names)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if words is None:
        assert done.returncode == 0 and "no problem in two of the 2 files" in done.stdout, done.stderr
    else:
        assert done.returncode == 2 and words in done.stderr and "no problem in two" not in done.stdout, done.stderr


def test_probes_write_over_no_input(sources, tmp_path):
    pool = write_pool(tmp_path / "probe_set_200.jsonl", 300)
    with pytest.raises(ValueError, match=r"probe_set_200\.jsonl to write, which is the input"):
        make_probe_sets([], pool, [], 42, tmp_path)
    aime = sources[-1].rename(tmp_path / "aime_eval.jsonl")
    before = aime.read_bytes()
    with pytest.raises(ValueError, match=r"aime_eval\.jsonl to write, which is the input"):
        make_probe_sets([*sources[:-1], aime], None, [], 42, tmp_path)
    assert aime.read_bytes() == before and len(rows_of(pool)) == 300
