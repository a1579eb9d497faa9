"""Question files of the search task: published forms, copies of evaluated questions, one's own, and mistakes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import COMMIT, serve
from hypothesis import given
from hypothesis import strategies as st
from published_questions import COPIES, COUNTS, rows, search_r1, skyrl, write_flashrag, write_hub, write_parquet
from published_sets import write

from rft.data import __main__ as command
from rft.data.check import check_file
from rft.data.curriculum import Part, make_curriculum, same_label
from rft.data.pass_rates import Sampling, estimate, from_evaluation
from rft.data.row_files import read_rows
from rft.data.search import copies, make, own, sets
from rft.data.search.prompts import PROTOCOLS, instruction_of
from rft.data.search.questions import Question, question_of, question_row
from rft.grading.short_answer import answers_of, is_exact, is_search_label
from rft.problems import problem_text
from rft.runs.preflight import decontamination
from rft.tiny.tokenizer import build_tokenizer

ROOT = Path(__file__).resolve().parents[2]
MADE = {f"{name}.jsonl" for name in COUNTS} | {"search_manifest.json", "search_train.jsonl.manifest.json"}
GOOD = {"id": "train_0", "question": "who built it", "golden_answers": ["Anna Torvald"], "data_source": "nq"}


@pytest.fixture
def run(monkeypatch, capsys):
    """The command in this process: exit status, standard output, standard error."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rft.data", *map(str, words)])
        return command.main(), *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """The folder of files made of Search-R1's Parquet files."""
    place = tmp_path_factory.mktemp("made")
    make.make(place / "search", write_parquet(place / "published"), "tags", 0, False)
    return place / "search"


def script(*words: object, **variables: str) -> subprocess.CompletedProcess:
    ours = ("HF_", "TRANSFORMERS_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours) and not k.lower().endswith("_proxy")}
    return subprocess.run(
        [sys.executable, "data/prepare_search_data.py", *map(str, words)],
        env=kept | {"NO_PROXY": "*"} | variables, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def rows_of(path: Path) -> dict[str, dict]:
    return {row["id"]: row for _, row in read_rows(path)}


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / f"{name}.jsonl").read_bytes() for name in COUNTS}


def test_each_set_is_a_file_of_rows_with_instruction_question_and_answers(made):
    assert {path.name for path in made.iterdir() if not path.name.startswith(".")} == MADE
    assert {name: len(rows_of(made / f"{name}.jsonl")) for name in COUNTS} == COUNTS
    row = rows_of(made / "triviaqa.jsonl")["triviaqa/test_0"]
    assert row["input"] == [
        {"role": "system", "content": instruction_of("tags")},
        {"role": "user", "content": "Which bird nests on the cliffs of Sarn?"},
    ]
    assert is_search_label(row["label"]) and answers_of(row["label"]) == ("puffin", "The Puffin")
    assert (row["datasource"], problem_text(row)) == ("triviaqa", "Which bird nests on the cliffs of Sarn?")
    assert list(rows_of(made / "search_train.jsonl")) == ["nq/train_1", "hotpotqa/train_0", "hotpotqa/train_1"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_chat_template_makes_the_instruction_the_developers(protocol):
    row = question_row(Question("nq/0", "Which tree?", ("Alder",), "nq"), instruction_of(protocol))
    prompt = build_tokenizer().apply_chat_template(row["input"], tokenize=False, add_generation_prompt=True)
    told = f"<|start|>developer<|message|># Instructions\n\n{instruction_of(protocol)}<|end|>"
    assert prompt.endswith(f"{told}<|start|>user<|message|>Which tree?<|end|><|start|>assistant")
    assert "Alder" not in prompt


def test_training_asks_nothing_that_is_evaluated(made):
    document = json.loads((made / "search_train.jsonl.manifest.json").read_text())
    rejected = {entry["id"]: (entry["reason"], entry["against"]) for entry in document["decontamination"]["rejected"]}
    assert rejected == COPIES
    manifest = json.loads((made / "search_manifest.json").read_text())
    assert manifest["files"]["search_train.jsonl"]["dropped"] == {
        "asked in an earlier row too": 1, "no answer that can be graded": 1, "near-duplicate": 1, "exact": 1,
    }  # fmt: skip
    assert manifest["files"]["popqa.jsonl"]["dropped"] == {"asked in an earlier row, with other answers": 1}
    overlap = {name: (found["known"], found["questions"]) for name, found in manifest["answer_overlap"].items()}
    # Merrin and 1901 are what training still teaches; yes and no teach nothing.
    assert overlap == {"nq": (0, 2), "triviaqa": (0, 1), "popqa": (0, 1), "hotpotqa": (0, 0),
                       "2wikimultihopqa": (0, 1), "musique": (0, 1), "bamboogle": (0, 1)}  # fmt: skip


def test_the_files_pass_the_check_and_preflight_knows_they_are_decontaminated(made, run, tmp_path):
    made = shutil.copytree(made, tmp_path / "search")
    files = [made / f"{name}.jsonl" for name in COUNTS if name != "search_probe"]
    status, printed, error = run("check", "--disjoint", *files)
    assert status == 0 and "no problem in two of the 8 files" in printed, error
    hashes = {path: check_file(path)[1] for path in [*files, made / "search_probe.jsonl"]}
    evaluated = [made / "nq.jsonl", made / "search_probe.jsonl"]
    (line,) = decontamination.check([made / "search_train.jsonl"], evaluated, hashes)
    assert "against all 2 evaluation sets" in line.measured
    make_curriculum([Part(files[0], 1.0)], None, (0, 1), "random", 2, 0, made / "chosen.jsonl")
    (line,) = decontamination.check([made / "chosen.jsonl"], evaluated, hashes)
    assert "against all 2 evaluation sets" in line.measured


@pytest.mark.parametrize("form", ["skyrl", "flashrag", "mixed order"])
def test_the_published_forms_give_the_same_questions(made, tmp_path, run, form):
    place = tmp_path / "published"
    if form == "skyrl":
        write_parquet(place, skyrl, "validation.parquet")
    elif form == "flashrag":
        write_flashrag(place)
    else:
        write(place / "nq_hotpotqa_train.jsonl", [search_r1(row) for row in rows("train")])
        (place / "validation.json").write_text(json.dumps([search_r1(row) for row in rows("test", "dev")]))
    status, printed, error = run("make", "--task", "search", "--from", place, "--out", tmp_path / "data")
    assert status == 0, error
    found = {name: rows_of(tmp_path / "data" / "search" / f"{name}.jsonl").values() for name in COUNTS}
    wanted = {name: rows_of(made / f"{name}.jsonl").values() for name in COUNTS}
    for name in COUNTS:  # ids are of the published row where it has one
        key = ("id", "input", "label") if form == "mixed order" else ("label",)
        assert sorted(problem_text(row) for row in found[name]) == sorted(problem_text(row) for row in wanted[name])
        assert sorted(row[field] for row in found[name] for field in key if field != "input") == sorted(
            row[field] for row in wanted[name] for field in key if field != "input"
        )
    if form == "flashrag":
        assert f"{place}/nq/dev.jsonl: not used" in printed and f"{place}/musique/train.jsonl: not used" in printed
        assert f"{place}/nq/test.jsonl: test, nq" in printed


def test_the_hub_gives_them_at_a_recorded_commit(made, tmp_path):
    with serve(write_hub(tmp_path / "hub")) as hub:
        place = {"HF_HOME": str(tmp_path / "cache"), "HF_ENDPOINT": hub.endpoint}
        done = script("--out", tmp_path / "data", **place)
        hub.commit = "f" * 40  # main moves on
        again = script("--out", tmp_path / "data", **place)
        other = script("--out", tmp_path / "data", "--protocol", "harmony", "--force", **place)
    assert done.returncode == 0 and COMMIT[:12] in done.stdout, done.stderr
    assert "complete already, every hash checked" in again.stdout
    assert [line for line in hub.asked if line.startswith("GET /api")] == [
        f"GET /api/datasets/{sets.REPO}/revision/main"
    ]
    assert other.returncode == 0, other.stderr
    row = rows_of(tmp_path / "data" / "search" / "nq.jsonl")["nq/test_0"]
    assert row["input"][0]["content"] == instruction_of("harmony") != instruction_of("tags")


def test_equal_inputs_give_equal_bytes_and_what_is_there_is_kept_unless_asked(made, tmp_path, run):
    place, out = write_parquet(tmp_path / "published"), tmp_path / "data"
    words = ("make", "--task", "search", "--from", place, "--out", out)
    assert run(*words)[0] == 0
    assert contents(out / "search") == contents(made)
    assert "complete already, every hash checked" in run(*words)[1]
    (out / "search" / "nq.jsonl").write_text("mine\n")
    status, _, error = run(*words)
    assert status == 1 and "nq.jsonl changed since it was made (sha256 in search_manifest.json)" in error
    assert (out / "search" / "nq.jsonl").read_text() == "mine\n"
    assert run(*words, "--force")[0] == 0 and contents(out / "search") == contents(made)
    status, _, error = run(*words, "--protocol", "harmony")
    assert status == 1 and "made with protocol tags" in error and "wanted protocol harmony" in error
    status, _, error = run("make", "--task", "math", "--protocol", "harmony", "--out", out)
    assert status == 1 and "found --protocol with --task math" in error
    status, _, error = run("make", "--task", "search", "--verify", "--out", out)
    assert status == 1 and "found --sanitized or --verify with --task search" in error


BAD = {
    "no folder": (None, "found no folder"),
    "nothing": ({}, "found no data file; wanted .parquet, .jsonl or .json files with train, and with test"),
    "training alone": ({"train.jsonl": [GOOD]}, "found train.jsonl; wanted"),
    "a shard missing": ({"train-00000-of-00002.jsonl": [GOOD], "test.jsonl": [GOOD]},
                        "found no train-00001-of-00002.jsonl, wanted all shards"),
    "an empty file": ({"train.jsonl": [], "test.jsonl": [GOOD]}, "found an empty file"),
    "sets that are none of ours": ({"train.jsonl": [GOOD], "test.jsonl": [GOOD | {"data_source": "squad"}]},
                                   "found no evaluation question of nq, triviaqa"),
    "one id twice": ({"train.jsonl": [GOOD, GOOD | {"question": "who else"}], "test.jsonl": [GOOD]},
                     "train.jsonl, line 2: found id 'nq/train_0', which", "make ids unique"),
    "another data set": ({"train.jsonl": [{"problem": "1 + 1", "answer": "2"}], "test.jsonl": [GOOD]},
                         "train.jsonl, line 1: found fields ['answer', 'problem'], wanted 'question' and"),
    "another table": ({"train.parquet": [{"problem": "1 + 1", "answer": "2"}], "test.jsonl": [GOOD]},
                      "found fields ['answer', 'problem'], wanted 'question' and"),
}  # fmt: skip


@pytest.mark.parametrize(("files", "words"), [(case[0], case[1:]) for case in BAD.values()], ids=BAD)
def test_bad_files_are_one_message_and_nothing_is_written(tmp_path, run, files, words):
    place = tmp_path / "sets"
    if files is not None:
        place.mkdir()
        for name, content in files.items():
            write(place / name, content)
    status, _, error = run("make", "--task", "search", "--from", place, "--out", tmp_path / "data")
    assert status == 1 and len(error.splitlines()) == 1, error
    for each in words:
        assert each in error
    assert not list(tmp_path.glob("data/search/[a-z]*"))


WRONG_ROWS = {
    "no object": ([1], "found [1], wanted an object with a question"),
    "no question": ({"golden_answers": ["x"]}, "found fields ['golden_answers']"),
    "no answers": ({"question": "who"}, "found fields ['question']"),
    "answers that are null": (GOOD | {"golden_answers": None}, "found no answers"),
    "an empty question": (GOOD | {"question": " "}, "field 'question' is ' ', wanted a question"),
    "a question that is a page": (GOOD | {"question": "x" * 20_001}, "of at most 20000 characters"),
    "a question with a surrogate": (GOOD | {"question": "\ud800"}, "field 'question' is "),
    "an inner question that is none": ({"extra_info": {"question": 1}, "answers": ["x"]},
                                       "field 'extra_info.question' is 1"),
    "answers that are no list": (GOOD | {"golden_answers": {"target": "x"}}, "wanted a list of short answers"),
    "an answer that is a number": (GOOD | {"golden_answers": ["x", 1]}, "field 'golden_answers' is ['x', 1]"),
    "an answer with a surrogate": (GOOD | {"golden_answers": ["\udfff"]}, "field 'golden_answers' is "),
    "two answers": (GOOD | {"reward_model": {"ground_truth": {"target": ["other"]}}}, "wanted the same answers"),
    "a truth that is none": (GOOD | {"reward_spec": {"ground_truth": 7}}, "field 'reward_spec.ground_truth' is 7"),
    "a source that is none": (GOOD | {"data_source": 3}, "field 'data_source' is 3"),
    "a source of a prefix": (GOOD | {"data_source": "searchR1_"}, "field 'data_source' is 'searchR1_'"),
    "an id that is none": (GOOD | {"id": True}, "field 'id' is True"),
    "an id with a surrogate": (GOOD | {"id": "\ud800"}, "field 'id' is "),
}  # fmt: skip


@pytest.mark.parametrize(("row", "words"), WRONG_ROWS.values(), ids=WRONG_ROWS)
def test_a_row_that_is_no_question_says_why(row, words):
    with pytest.raises(ValueError) as caught:
        question_of(row, "nq")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        (GOOD, Question("nq/train_0", "who built it", ("Anna Torvald",), "nq")),
        (GOOD | {"id": 0}, Question("nq/0", "who built it", ("Anna Torvald",), "nq")),
        (GOOD | {"id": "nq/train_0"}, Question("nq/train_0", "who built it", ("Anna Torvald",), "nq")),
        ({"question": " who? ", "answer": " x "}, Question("own/c9a3", "who?", ("x",), "own")),
        ({"question": "who?", "answers": ["x", "x ", "y", "!", "a"]}, Question("own/c9a3", "who?", ("x", "y"), "own")),
        ({"question": "who?", "golden_answers": []}, Question("own/c9a3", "who?", (), "own")),
    ],
)
def test_forms_of_a_row(row, wanted):
    found = question_of(row, "own")
    if "id" not in row:
        assert found.id.startswith("own/") and len(found.id) == len("own/") + 16
        found = found._replace(id=wanted.id)
    assert found == wanted


NAMES = st.sampled_from(["target", "ground_truth", "question"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner),
    max_leaves=4,
)  # fmt: skip
FIELDS = ("id", "question", "golden_answers", "answers", "answer", "data_source", "reward_model", "extra_info")


@given(st.dictionaries(st.sampled_from(FIELDS), JSON | st.lists(st.text(max_size=6), max_size=3)))
def test_any_row_is_a_question_that_can_be_written_or_one_message(row):
    try:
        question = question_of(row, "own")
    except ValueError as error:
        assert str(error) and "\n" not in str(error)
        return
    if not question.answers:
        return
    made = json.loads(json.dumps(question_row(question, "search")).encode())
    assert problem_text(made) == question.text.strip() and made["id"].startswith(f"{made['datasource']}/")
    assert answers_of(made["label"]) == question.answers and is_exact(question.answers[0], question.answers)


def test_a_protocol_has_an_instruction_that_a_chat_can_hold():
    assert len({instruction_of(name) for name in PROTOCOLS}) == len(PROTOCOLS) == 2
    with pytest.raises(ValueError, match="found protocol 'xml', wanted one of tags, harmony; correct --protocol"):
        instruction_of("xml")


# Of the evaluation question "who wrote the long song of the northern harbour towns", answered by "Ilse Varga".
LIKE = {
    "the same in other dress": ("Who wrote the LONG song of the northern harbour towns?", ["nobody"], "exact"),
    "a word more": ("who wrote the very long song of the northern harbour towns", ["ilse varga"], "near-duplicate"),
    "a word more, another answer": ("who wrote the very long song of the northern harbour towns", ["Hild"], None),
    "a letter less, another answer": ("who wrote the long song of the northern harbour town", ["H"], "near-duplicate"),
    "inside of a longer one": ("say who wrote the long song of the northern harbour towns and when", ["x"], "8-gram"),
    "another question": ("who sang the short song of the southern villages", ["Ilse Varga"], None),
    "half of it and one": ("did she who wrote the long song of the northern harbour sing", ["ilse varga"], "8-gram"),
    "half of it": ("did she who wrote the long song of the northern harbour sing", ["no"], None),
    "another name": ("who wrote the long song of the northern mountain towns", ["Hild"], None),
    "another answer of yes or no": ("is the long song of the harbour towns sung", ["yes"], None),
}  # fmt: skip


@pytest.mark.parametrize(("text", "answers", "reason"), LIKE.values(), ids=LIKE)
def test_what_counts_as_a_copy(text, answers, reason):
    asked = "who wrote the long song of the northern harbour towns"
    index = copies.index_of([
        Question("nq/0", asked, ("Ilse Varga",), "nq"),
        Question("nq/1", "is the short song of the harbour towns sung", ("yes",), "nq"),
    ])  # fmt: skip
    found = copies.find_copy(Question("t/0", text, tuple(answers), "t"), index)
    assert (found and found.reason) == reason


def test_ones_own_questions_leave_out_what_is_evaluated(made, tmp_path, run):
    asked = [
        {"question": "Which bird nests on the cliffs of Sarn?", "answer": "gull"},
        {"question": "who keeps the key of the mill", "golden_answers": ["the miller", "Hod's miller"]},
    ]
    file, out = write(tmp_path / "own.jsonl", asked), tmp_path / "rows.jsonl"
    done = script("--questions", file, "--out", out, "--eval-set", made / "triviaqa.jsonl")
    assert done.returncode == 0, done.stderr
    assert "exact of triviaqa/test_0" in done.stdout and f"{out}: 1 questions" in done.stdout
    (row,) = rows_of(out).values()
    assert row["datasource"] == "own" and answers_of(row["label"]) == ("the miller", "Hod's miller")
    assert run("check", out)[0] == 0
    assert own.make(file, [], tmp_path / "all.jsonl", "tags", False)[0] == 2
    out.write_text("mine\n")
    with pytest.raises(ValueError, match="with another content, wanted a new file"):
        own.make(file, [], out, "tags", False)
    assert out.read_text() == "mine\n"


OWN = {
    "twice": ([{"question": "who?", "answer": "x"}, {"question": "Who", "answer": "y"}], "found the question "),
    "one id": ([GOOD, GOOD | {"question": "who"}], "line 2: found the id 'nq/train_0', as in line 1"),
    "no answer": ([{"question": "who?", "answer": "!"}], "line 1: found no answer with a letter or a digit"),
    "all evaluated": ([{"question": "Which bird nests on the cliffs of Sarn?", "answer": "x"}], "found every question"),
}  # fmt: skip


@pytest.mark.parametrize(("questions", "words"), OWN.values(), ids=OWN)
def test_ones_own_mistakes(made, tmp_path, questions, words):
    file = write(tmp_path / "own.jsonl", questions)
    with pytest.raises(ValueError) as caught:
        own.make(file, [made / "triviaqa.jsonl"], tmp_path / "rows.jsonl", "tags", False)
    assert words in str(caught.value) and not (tmp_path / "rows.jsonl").exists()
    with pytest.raises(ValueError, match="found no row of the search task"):
        own.make(file, [file], tmp_path / "rows.jsonl", "tags", False)


def test_options_that_do_not_go_together(tmp_path):
    done = script("--out", tmp_path / "x", "--eval-set", tmp_path / "y.jsonl")
    assert done.returncode == 2 and "found --eval-set without --questions" in done.stderr


def label(*answers: str) -> str:
    return json.dumps({"kind": "search", "answers": list(answers)})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (label("Paris", "paris, France"), None),
        (label("The"), "found 'The' as an answer of a label, wanted one of more than articles"),
        (label("x", ""), "found "),
        ('{"kind": "search", "answers": []}', "found "),
        ('{"kind": "search", "answers": "Paris"}', "found "),
        ('{"kind": "search"}', "found "),
    ],
)
def test_the_check_knows_the_labels(tmp_path, text, words):
    row = question_row(Question("nq/0", "where?", ("x",), "nq"), "search") | {"label": text}
    faults, _ = check_file(write(tmp_path / "rows.jsonl", [row]))
    assert (len(faults) == 0) if words is None else (len(faults) == 1 and "field 'label': " + words in faults[0]), (
        faults
    )


def test_tools_that_cannot_judge_a_search_refuse_it(made, tmp_path, run):
    train = made / "search_train.jsonl"
    sampling = Sampling(1, 0.0, 1.0, 8, 64, 0)
    with pytest.raises(ValueError, match="of a question to search for, wanted answers or tests"):
        estimate(str(tmp_path), train, sampling, tmp_path / "cache.jsonl", tmp_path / "rates.jsonl")
    status, _, error = run("check", train, "--reward", ROOT / "rewards" / "reward_func_em.py")
    assert status == 2 and "whose reward is the agent's; leave --reward out" in error


def evaluated(tmp_path: Path, problems: dict[str, dict], samples: int = 4, **changes: object) -> Path:
    """A result file: of the sorted problems the first is never right, the next once, and so on."""
    records = [
        {"id": name, "index": i, "label": row["label"], "response": "x", "answer": "x", "correct": i < place,
         "correct_lenient": i < place, "has_boxed": False, "label_valid": True, "truncated": i == 0, "tokens": 3}
        for place, (name, row) in enumerate(sorted(problems.items())) for i in range(samples)
    ]  # fmt: skip
    mode = f"sampling_pass@{samples}"
    numbers = {"n": len(problems), "interval95": [0, 1], "samples_per_problem": samples, "metrics": {}, mode: 0.5}
    result = {"model": "m", "kind": "base", "dataset": "d", "mode": mode, "temperature": 0.6, "truncated": 0.0}
    file = tmp_path / "result.json"
    file.write_text(json.dumps([result | numbers | {"mean_tokens": 3, "ungradable": 0, "records": records} | changes]))
    return file


def test_pass_rates_of_an_agent_are_those_of_its_evaluation(made, tmp_path):
    train, out = made / "search_train.jsonl", tmp_path / "rates.jsonl"
    file = evaluated(tmp_path, rows_of(train))
    words = (sys.executable, "data/estimate_pass_rates.py", "--dataset", train, "--out", out)
    done = subprocess.run([*words, "--evaluation", file], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "3 problems, mean pass@1 0.250" in done.stdout, done.stderr
    rates = rows_of(out)
    assert {name: row["pass_rate"] for name, row in rates.items()} == {
        "hotpotqa/train_0": 0.0, "hotpotqa/train_1": 0.25, "nq/train_1": 0.5
    }  # fmt: skip
    assert rates["nq/train_1"] == {"id": "nq/train_1", "pass_rate": 0.5, "n": 4, "correct": 2, "truncated": 1}
    make_curriculum([Part(train, 1.0)], out, (0.1, 0.9), "hard-first", None, 0, tmp_path / "c.jsonl")
    assert list(rows_of(tmp_path / "c.jsonl")) == ["hotpotqa/train_1", "nq/train_1"]
    done = subprocess.run([*words, "--model", "x"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "found --model, wanted --model DIR and --cache FILE, or" in done.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"samples_per_problem": 1}, "wanted one, with two samples a problem or more"),
        ({"temperature": 0.0}, "wanted one, with two samples a problem or more"),
        ({"records": []}, "wanted records with"),
    ],
)
def test_an_evaluation_that_gives_no_rates(made, tmp_path, change, words):
    train = made / "search_train.jsonl"
    with pytest.raises(ValueError, match=words):
        from_evaluation(evaluated(tmp_path, rows_of(train), **change), train, tmp_path / "rates.jsonl")
    file = evaluated(tmp_path, rows_of(made / "nq.jsonl"))
    with pytest.raises(ValueError, match=r"found no sample of 3 problems of .* with these labels, 'nq/train_1' first"):
        from_evaluation(file, train, tmp_path / "rates.jsonl")
    assert not (tmp_path / "rates.jsonl").exists()


def test_copies_in_two_parts_of_a_curriculum_agree_where_an_answer_does(made, tmp_path):
    assert same_label(label("The Puffin"), label("gull", "puffin")) and not same_label(label("a b"), label("c"))
    first = tmp_path / "first.jsonl"
    row = question_row(Question("own/0", "When was the harbour of Brun opened?", ("In 1901", "1901"), "own"), "search")
    write(first, [row])
    parts = [Part(first, 1.0), Part(made / "search_train.jsonl", 1.0)]
    make_curriculum(parts, None, (0, 1), "file", 2, 0, tmp_path / "mixed.jsonl")
    assert list(rows_of(tmp_path / "mixed.jsonl")) == ["own/0", "hotpotqa/train_0"]
    write(first, [row | {"label": label("1902")}])
    with pytest.raises(ValueError, match="found one problem with label"):
        make_curriculum(parts, None, (0, 1), "file", 2, 0, tmp_path / "mixed.jsonl")
