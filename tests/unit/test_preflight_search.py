"""Preflight's look at search agents: settings, labels, room for turns, the retriever and its GPUs."""

import json
from pathlib import Path

import pytest
from preflight_options import changed, verdicts
from retrievers import corpus_of, retrieving

from rft.agents.settings import PROTOCOL_VARIABLE, WHOLE
from rft.grading.short_answer import label_of
from rft.hooks.environment import AGENT
from rft.hooks.environment import NAMES as OF_WORKERS
from rft.record.digest import file_sha256
from rft.retriever import TOKEN_VARIABLE, URL_VARIABLE
from rft.runs.launched import NAMES as OF_LAUNCHES
from rft.runs.preflight import search
from rft.runs.preflight.decontamination import maker
from rft.runs.preflight.lines import GO, NO_GO, WARN
from rft.runs.preflight.model import check_reward

ROOT = Path(__file__).resolve().parents[2]
AGENT_FILE = str(ROOT / "agents/agent_func_search.py")
LABEL, BROKEN = label_of(["Paris", "Paris, France"]), json.dumps({"kind": "search", "answers": []})
VARIABLES = (
    *AGENT, URL_VARIABLE, "CORPUS", "RAY_ADDRESS", "RFT_RAY_LOGS", "RETRIEVER_PID", "RETRIEVER_GPUS", "RFT_STACK",
    "CUDA_VISIBLE_DEVICES",
)  # fmt: skip


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(URL_VARIABLE, "http://127.0.0.1:1")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A retriever of five passages, and its corpus."""
    place = tmp_path_factory.mktemp("served")
    corpus = corpus_of(place, 5, [])
    with retrieving(place, corpus) as found:
        yield found.url, corpus


@pytest.fixture
def checked(tmp_path):
    """A function from labels of training to the page's lines by name, for a run with the agent unless it is said."""

    def check(*labels: str, agent: str | None = AGENT_FILE) -> dict[str, tuple[str, str]]:
        file = tmp_path / "train.jsonl"
        rows = [{"input": f"question {number}", "label": label} for number, label in enumerate(labels)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        args = changed(agent_func_path=agent, prompt_data=str(file), eval_dataset="", label_key="label")
        return {line.name: (line.verdict, line.measured) for line in search.check_search(args)}

    return check


def test_what_the_agent_reads_reaches_workers_and_resumes():
    assert set(AGENT) == {PROTOCOL_VARIABLE, *(wanted.variable for wanted in WHOLE.values())}
    assert {*AGENT, URL_VARIABLE, TOKEN_VARIABLE} <= set(OF_WORKERS)
    assert set(AGENT) <= set(OF_LAUNCHES) and TOKEN_VARIABLE not in OF_LAUNCHES  # a file of the run holds no token


@pytest.mark.parametrize(
    ("labels", "agent", "verdict", "measured"),
    [
        ((LABEL, LABEL), AGENT_FILE, GO, "2 labels with accepted answers"),
        ((LABEL, "4"), AGENT_FILE, NO_GO, "1 of 2 labels are none of a search task"),
        ((LABEL, BROKEN), AGENT_FILE, NO_GO, "1 of 2 labels"),
        ((LABEL, LABEL), None, NO_GO, "2 labels of search tasks, and no agent that searches"),
        ((LABEL, "4"), "/own/agent.py", NO_GO, "1 labels of search tasks"),
    ],
)
def test_labels_and_agent_must_fit(checked, labels, agent, verdict, measured):
    found = checked(*labels, agent=agent)
    assert found["search labels"][0] == verdict and measured in found["search labels"][1]


def test_a_run_without_searches_has_no_line(checked):
    assert checked("4", "5", agent=None) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RFT_AGENT_PROTOCOL", "xml"),
        ("RFT_AGENT_MAX_TURNS", "0"),
        ("RFT_AGENT_TURN_TOKENS", "many"),
        ("RFT_AGENT_OBSERVATION_TOKENS", "-1"),
        ("RFT_AGENT_TOPK", "1.5"),
        ("RETRIEVER_URL", "nowhere"),
    ],
)
def test_a_value_that_the_agent_cannot_use_is_named(checked, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    verdict, measured = checked(LABEL)["search agent"]
    assert verdict == NO_GO and name in measured and repr(value).strip("'") in measured
    assert search.check_room(changed(), None) == []


@pytest.mark.parametrize(
    ("generate", "longest", "verdict", "measured"),
    [
        (2048, 300, GO, "300 tokens of prompt, 4 turns of 500, observations of 500: 3800 of 4096"),
        (2048, 596, GO, "4096 of 4096"),
        (2048, 597, WARN, "2 of 3 searches"),
        (2048, None, GO, "0 tokens of prompt"),
        (2048, 9000, WARN, "2048 tokens of prompt"),  # cut to --prompt_max_len
        (500, 1048, WARN, "1 of 3 searches"),
        (500, 1049, NO_GO, "no turn could search"),
        (16, 2048, NO_GO, "turns of 16, observations of 500: 3612 of 2064: no turn"),
    ],
)
def test_turns_have_room(generate, longest, verdict, measured):
    (line,) = search.check_room(changed(prompt_max_len=2048, generate_max_len=generate), longest)
    assert line.verdict == verdict and measured in line.measured
    assert bool(line.repair) == (verdict != GO)


def test_the_repair_of_too_little_room_is_enough():
    tight = changed(prompt_max_len=2048, generate_max_len=500)
    (line,) = search.check_room(tight, 1500)
    enough = int(line.repair.split()[1].rstrip(","))
    assert verdicts(search.check_room(changed(prompt_max_len=2048, generate_max_len=enough), 1500)) == {GO}


def test_a_retriever_that_does_not_answer_is_no_go(checked):
    verdict, measured = checked(LABEL)["retriever"]
    assert verdict == NO_GO and "no answer from the retriever at http://127.0.0.1:1/health" in measured


def test_the_retriever_and_its_corpus_are_looked_at(checked, served, monkeypatch, tmp_path):
    url, corpus = served
    monkeypatch.setenv(URL_VARIABLE, url)
    found = checked(LABEL)
    assert found["retriever"] == (GO, f"{url}, 5 passages of corpus.jsonl (sha256 {file_sha256(corpus)[:16]}), bm25")
    assert "retriever's GPUs" not in found  # whose they are is another launch's
    monkeypatch.setenv("CORPUS", str(corpus))
    assert checked(LABEL)["retriever"][0] == GO
    monkeypatch.setenv("CORPUS", str(corpus_of(tmp_path, 6, [])))
    verdict, measured = checked(LABEL)["retriever"]
    assert verdict == NO_GO and f"but CORPUS={tmp_path}/corpus.jsonl has sha256 " in measured


@pytest.mark.parametrize(
    ("name", "value", "measured"),
    [
        ("RFT_AGENT_TOPK", "6", "fewer than RFT_AGENT_TOPK=6"),
        ("RAY_ADDRESS", "10.0.0.1:6379", "would ask their own loopback"),
    ],
)
def test_what_may_go_wrong_with_a_retriever_is_a_warning(checked, served, monkeypatch, name, value, measured):
    monkeypatch.setenv(URL_VARIABLE, served[0])
    monkeypatch.setenv(name, value)
    verdict, said = checked(LABEL)["retriever"]
    assert verdict == WARN and measured in said


@pytest.mark.parametrize(
    ("own", "training", "index", "verdict"),
    [
        (None, None, "bm25", GO),
        (None, "0,1", "dense/hnsw", GO),
        (None, None, "dense/torch", NO_GO),
        ("2,3", "0,1", "dense/torch", GO),
        ("1,2", "0,1", "dense/torch", NO_GO),
        ("2,3", None, "dense/torch", NO_GO),
        ("all", None, "dense/torch", WARN),
    ],
)
def test_the_gpus_of_the_index_are_its_own(monkeypatch, own, training, index, verdict):
    for name, value in (("RETRIEVER_GPUS", own), ("CUDA_VISIBLE_DEVICES", training)):
        if value is not None:
            monkeypatch.setenv(name, value)
    (line,) = search.check_place(index)
    assert line.verdict == verdict and bool(line.repair) == (verdict != GO)


@pytest.mark.parametrize(
    ("text", "verdict", "measured"),
    [
        ("AgentExecutor = 1", GO, "agent.py"),
        ("class AgentExecutor: pass", GO, "agent.py"),
        ("def other(): pass", NO_GO, "defines no AgentExecutor"),
        ("def (", NO_GO, "agent.py: "),
    ],
)
def test_an_agents_file_must_define_one(tmp_path, text, verdict, measured):
    file = tmp_path / "agent.py"
    file.write_text(text)
    (line,) = check_reward(changed(agent_func_path=str(file), remote_rm_url="agent"))
    assert line.verdict == verdict and measured in line.measured
    (line,) = check_reward(changed(agent_func_path=str(tmp_path / "none.py"), remote_rm_url="agent"))
    assert line.verdict == NO_GO and "agents/agent_func_search.py" in line.repair


def test_copies_in_search_data_are_repaired_by_what_made_it(tmp_path):
    file = tmp_path / "a b" / "search" / "search_train.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"input": "q", "label": LABEL}) + "\n")
    assert maker(file, []) == f".venv/bin/python -m rft.data make --task search --out '{tmp_path}/a b'"
