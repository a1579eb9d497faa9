"""The tiny search task through the whole stack: its retriever is killed, which ends the run by name; it is resumed."""

import json

import pytest
from launches import background, end, server_fell
from passages_server import retriever
from tiny_search import tiny_search

from rft.record.names import TRAINING_FILE
from rft.record.readers import read_jsonl
from rft.runs.memory import marked_processes

pytestmark = pytest.mark.stack
STEPS, EVALUATED = 2, 32
LAUNCH = ["bash", "launch/train_grpo_tiny_search.sh", "--max_samples", str(32 * STEPS), "--num_episodes", "1"]
LAUNCH += ["--save_steps", "1"]  # evaluations in the loop come with step 4: none


def test_a_killed_retriever_ends_the_training_which_goes_on_with_one_of_the_same_corpus(tmp_path):
    run_dir, output = tmp_path / "run", tmp_path / "out"
    _, data = tiny_search(tmp_path)
    few = tmp_path / "few.jsonl"
    few.write_text("".join((data / "heldout.jsonl").read_text().splitlines(keepends=True)[:EVALUATED]))
    launcher = background(LAUNCH, output, RUN_DIR=str(run_dir), SEED="0", EVAL_DATASET=str(few))
    said, seconds = server_fell(run_dir, launcher, output, b"\0rft.retriever\0", "retriever", "retriever_died")
    assert f"then bash launch/resume.sh {run_dir}" in said
    assert seconds < 60 and marked_processes(str(run_dir)) == []  # the bound of users, not of this machine
    record = json.loads((run_dir / "run.json").read_text())
    assert record["retriever"]["corpus_name"] == "corpus.jsonl" and record["agent"]["max_turns"] == 3

    resume = ["bash", "launch/resume.sh", str(run_dir)]
    with retriever(tmp_path) as other:
        launcher = background(resume, output, RETRIEVER_URL=other)
        assert launcher.wait(timeout=300) == 1
    assert "error: the retriever of the run has changed\n  found:  corpus " in output.read_text()
    assert f"wanted: corpus {record['retriever']['corpus']}" in output.read_text()

    launcher = background(resume, output)
    try:
        assert launcher.wait(timeout=900) == 0, output.read_text()[-4000:]
    finally:
        end(launcher)
    records = read_jsonl(run_dir / TRAINING_FILE)
    assert [line["global_step"] for line in records] == list(range(1, STEPS + 1))
    assert all(line["searches"] > 0 and line["search_seconds"] > 0 for line in records)
    result = json.loads((run_dir / "result.json").read_text())
    assert (result["before"]["n"], result["after"]["n"]) == (EVALUATED, EVALUATED)
    assert json.loads((run_dir / "run.json").read_text())["retriever"] == record["retriever"]
    assert marked_processes(str(run_dir)) == []
