"""A job of Slurm that trains: actor and engine on nodes of their own, the retriever on a third, `scancel`, resume."""

import re
import time

import pytest
from compared import comparable
from slurm_runs import ROOT, jobs_of, said, slurm_sh, submit

STEPS = 4
OPTIONS = ["--max_samples", str(32 * STEPS), "--num_episodes", "1", "--save_steps", "1", "--full_determinism"]
PLACES = re.compile(r"^node (n\d) .*: (policy rank 0|engine 0)", re.MULTILINE)


@pytest.fixture(scope="module")
def corpus(slurm):
    """The passages of the tiny search task, which depend on nothing: what the launcher's own data asks for."""
    slurm.asked(".venv/bin/python", "data/prepare_arithmetic.py", "--task", "search", "--out", slurm.work / "facts")
    return str(slurm.work / "facts/corpus.jsonl")


def begin(slurm, corpus):
    variables = {"NODES": "3", "RETRIEVER_PLACE": "apart", "CORPUS": corpus, "NODE_GPUS": "1", "PREFLIGHT": "0"}
    return submit(slurm, *OPTIONS, launcher=ROOT / "launch/train_grpo_tiny_search.sh", **variables)


def end(slurm, run, job):
    assert slurm.wait_for_job(job, seconds=1200) == "COMPLETED", said(run, job)[-8000:]
    assert {node for node, _ in PLACES.findall(said(run, job))} == {"n1", "n2"}, said(run, job)[-8000:]


def test_a_search_agent_that_scancel_ends_resumes_to_the_same_metrics(slurm, corpus):
    run, job = begin(slurm, corpus)
    end(slurm, run, job)
    wanted = comparable(run)
    assert [step["global_step"] for step in wanted] == list(range(1, STEPS + 1))
    assert all(step["searches"] > 0 for step in wanted), "the third node is asked"

    again, job = begin(slurm, corpus)
    latest = again / "checkpoints/_actor/latest"
    deadline = time.monotonic() + 1200
    while not (latest.exists() and latest.read_text() == "global_step2"):
        assert time.monotonic() < deadline and " ends with status " not in said(again, job), said(again, job)[-8000:]
        time.sleep(0.1)
    slurm.asked("scancel", job)
    assert slurm.wait_for_job(job) == "CANCELLED"
    assert len(comparable(again)) < STEPS, "it was cut off"
    assert slurm_sh(slurm, "resume", again).returncode == 0
    end(slurm, again, jobs_of(again)[1])
    assert comparable(again) == wanted
