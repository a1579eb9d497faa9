"""Two nodes with addresses of their own: a run over both, and what happens when one is lost or is not alike."""

import re
import subprocess
import time

import pytest
from host_network import missing
from two_nodes import ROOT, cluster, wait_until

from rft.record.names import TRAINING_FILE
from rft.record.readers import read_jsonl

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
LAUNCHER = ["bash", "launch/train_grpo_tiny.sh", "--max_samples", "64", "--save_steps", "1"]  # 2 steps
PLACES = re.compile(r"^node (n\d) \([\d.]+\): ((?:trainer|policy rank|vLLM engine).*)$", re.MULTILINE)


def test_with_no_node_lost_the_sums_are_trained_by_an_actor_on_one_and_an_engine_on_the_other(tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    with cluster(tmp_path) as two:
        launch = two.drive(LAUNCHER, out, RUN_DIR=str(run))
        assert launch.wait(timeout=1500) == 0, out.read_text()[-6000:]
        said = (run / "train.log").read_text()
        # Controller and policy rank 0 are on the launcher's node.
        where = {who: node for node, here in PLACES.findall(said) for who in here.split(", ")}
        assert where == {"trainer": "n1", "policy rank 0": "n1", "vLLM engine 0": "n2"}, said[-6000:]
        assert [record["global_step"] for record in read_jsonl(run / TRAINING_FILE)] == [1, 2]
        shown = re.findall(r"^node (n\d) .*: (policy rank 0|engine 0)", out.read_text(), re.MULTILINE)
        assert shown == [("n1", "policy rank 0"), ("n2", "engine 0")], "where they will be is shown before"
        assert all(part.poll() is None for part in two.parts), "a cluster of RAY_ADDRESS is left running"


def test_a_node_that_is_lost_ends_the_run_of_the_sums_by_name(tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    with cluster(tmp_path) as two:
        launch = two.drive(LAUNCHER[:2], out, RUN_DIR=str(run), PREFLIGHT="0")
        wait_until(lambda: (run / TRAINING_FILE).exists(), launch, out)
        begin = time.monotonic()
        two.hosts[1].power_off()
        assert launch.wait(timeout=600) == 1
        print(f"{time.monotonic() - begin:.1f} s from the loss of the node to the end of the run")
        assert "error: node n2 (10.77.0.2) is lost, which ends the run" in out.read_text()
        assert two.parts[0].poll() is None


def test_a_node_that_is_not_alike_is_refused_by_name(tmp_path):
    """An input of another content on the disk of the second host; then the head is lost, and the worker says so."""
    check = [str(ROOT / ".venv/bin/python"), "-m", "rft.runs.nodes", "check"]
    with cluster(tmp_path) as two:
        disk = two.environment["NODE_TMP"]
        for host, text in zip(two.hosts, ("equal", "other"), strict=True):
            host.run(["sh", "-c", f"echo {text} >{disk}/data.jsonl"], check=True)
        out = tmp_path / "out"
        assert two.drive([*check, "--input", f"{disk}/data.jsonl"], out).wait(timeout=300) == 1
        assert re.search(rf"found:  n2 \(10.77.0.2\): sha256 of {disk}/data.jsonl is \w+, \w+ on n1 ", out.read_text())
        assert "node n2 (10.77.0.2): openrlhf " in out.read_text()

        training = [".venv/bin/python", "-m", "openrlhf.cli.train_ppo_ray", "--actor_num_gpus_per_node", "2"]
        training += ["--vllm_num_engines", "1", "--attn_implementation", "eager", "--advantage_estimator", "group_norm"]
        training += ["--pretrain", "model", "--remote_rm_url", "reward.py", "--actor_num_nodes", "1"]
        training += ["--n_samples_per_prompt", "8", "--init_kl_coef", "0"]
        assert two.drive([*check, "--", *training], out).wait(timeout=300) == 1
        assert "the run does not fit" in out.read_text() and "wanted: 3 free GPUs" in out.read_text(), out.read_text()

        two.parts[0].terminate()
        assert two.parts[0].wait(timeout=300) == 143
        assert two.parts[1].wait(timeout=300) == 1
        assert "this node's Ray has ended" in two.said[1].read_text()


def test_a_cluster_that_is_not_complete_says_what_is_there(tmp_path):
    with cluster(tmp_path) as two:
        out = tmp_path / "out"
        driver = two.hosts[0].start(
            ["bash", "launch/node.sh", "driver", "5", two.address, "true"],
            cwd=ROOT, env=two.environment | {"RAY_SECONDS": "25"}, stdout=out.open("wb"), stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert driver.wait(timeout=300) == 1
        said = out.read_text()
        assert "n1 (10.77.0.1): 1 GPUs; n2 (10.77.0.2): 1 GPUs, after 25 s" in said and "wanted: 5 GPUs" in said
