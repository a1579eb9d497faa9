"""Jobs of several nodes on a real Slurm: Ray on each, a retriever on one, proxies, modules, a node that dies."""

import json
import re

import pytest
import slurm_nodes
from slurm_runs import said, slurm_sh, submit, trained

PASSAGES = ["The moon circles the earth.", "Salt dissolves in water."]


@pytest.fixture(scope="module")
def corpus(slurm):
    file = slurm.work / "corpus.jsonl"
    rows = [{"id": str(i), "contents": f'"T{i}"\n{text}'} for i, text in enumerate(PASSAGES)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.mark.parametrize("place", ["apart", "ray"])
def test_three_nodes_with_the_retriever_on_one(slurm, job, corpus, place):
    variables = {"NODES": "3", "RETRIEVER_PLACE": place, "CORPUS": corpus, "NODE_GPUS": "2"}
    variables |= {"JOB_MODULES": "toy/1.2", "JOB_PROXY_MODULE": "proxy/default", "JOB_SCRATCH": f"{slurm.work}/scratch"}
    run, number = job("--steps", "1", "--look", **variables)
    assert slurm.wait_for_job(number) == "COMPLETED", said(run, number)
    seen = json.loads(re.search("^SEEN (.*)", said(run, number), re.MULTILINE)[1])
    trains = {"gpus": 2, "cpus": 8, "TOY_MODULE": "toy/1.2", "JOB_ID": number, "HF_HUB_OFFLINE": "1"}
    trains |= {"HF_HOME": f"{slurm.work}/scratch/huggingface", "http_proxy": "http://10.77.0.254:3128"}
    assert seen["n1"] == seen["n2"] == trains
    assert seen.get("n3") == (trains | {"gpus": 0} if place == "ray" else None)
    assert seen["by proxy"] == 403, "the proxy answers for hosts of the cluster where nothing keeps it out"
    assert seen["answer"][0] == 200 and PASSAGES[0] in seen["answer"][1]
    assert {"localhost", "n1", "10.77.0.1", "n3", "10.77.0.3"} <= set(seen["no_proxy"].split(","))


def test_a_retriever_that_cannot_start_ends_the_job_by_name(slurm, job, corpus):
    broken = slurm.work / "broken.jsonl"
    broken.write_text("no json\n")
    run, number = job("--steps", "1", NODES="2", RETRIEVER_PLACE="apart", CORPUS=str(broken))
    assert slurm.wait_for_job(number) == "FAILED"
    assert "the retriever on n2" in slurm_sh(slurm, "status", run).stdout, said(run, number)
    assert "launched on" not in said(run, number)


def test_a_module_that_is_not_there_is_named(slurm, job):
    run, number = job(JOB_MODULES="toy/1.2 cuda/99")
    assert slurm.wait_for_job(number) == "FAILED"
    assert "error: a module was not loaded\n  found:  cuda/99, on n1" in said(run, number)


def test_a_node_that_dies_ends_the_job_by_name(tmp_path):
    if reason := slurm_nodes.missing():
        pytest.skip(reason)
    slurm = slurm_nodes.Cluster(tmp_path)
    try:
        run, number = submit(slurm, "--steps", "5000", NODES="2")
        trained(run, number, 1)
        slurm.cut_off("n2")
        slurm.wait_for_job(number)
        assert "error: Ray on n2" in said(run, number), said(run, number)
        shown = slurm_sh(slurm, "status", run).stdout
        assert "ended 1 Ray on n2" in shown and f"to go on: bash launch/slurm.sh resume {run}" in shown
    finally:
        slurm.stop()
