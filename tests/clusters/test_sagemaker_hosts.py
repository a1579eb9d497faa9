"""A job of SageMaker on two hosts with the real launcher, each a network namespace with a disk of its own."""

import re
import signal

import pytest
from compared import comparable, differing
from host_network import missing
from s3_server import store
from sagemaker_hosts import NAMES, clone_with_launcher, job, make_inputs
from sagemaker_jobs import BUCKET

from rft.sagemaker import source

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
STEPS = 4
PLACES = re.compile(r"^node (algo-\d) \([\d.]+\): ((?:trainer|policy rank|vLLM engine).*)$", re.MULTILINE)
OPTIONS = ["--save_steps", "1", "--max_ckpt_num", "1", "--full_determinism", "--eval_steps", "2"]
OPTIONS += ["--pretrain", f"s3://{BUCKET}/model", "--prompt_data", f"s3://{BUCKET}/data/train.jsonl"]
OPTIONS += ["--eval_dataset", f"s3://{BUCKET}/data/heldout.jsonl"]
# Two ranks of ZeRO-3 on two hosts, and an engine where there is a GPU left. Without these the one rank is on the head.
TWO_RANKS = ["--actor_num_nodes", "2", "--actor_num_gpus_per_node", "1", "--micro_train_batch_size", "32"]
QUICK = {"PREFLIGHT": "0", "EVAL_REFERENCE": "none"}


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Makes the archive of a job with options more."""
    clone = clone_with_launcher(tmp_path_factory.mktemp("clone") / "rft")
    return lambda *options: source.archive(clone, "launch/train_given.sh", [*OPTIONS, *options])


@pytest.fixture
def s3(tmp_path_factory):
    """With model and problems."""
    made = make_inputs(tmp_path_factory.mktemp("inputs"), 32 * STEPS)
    with store(BUCKET) as client:
        for file in made.glob("[md]*/*"):
            client.upload_file(str(file), BUCKET, file.relative_to(made).as_posix())
        yield client


def names(s3, prefix: str) -> set[str]:
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/")
    return {entry["Key"].removeprefix(f"{prefix}/") for page in pages for entry in page.get("Contents", [])}


def test_two_hosts_that_are_taken_away_end_with_the_numbers_of_two_that_are_not(archive, s3, tmp_path):
    of_two_ranks = archive(*TWO_RANKS)
    with job(tmp_path / "whole", of_two_ranks, "whole", **QUICK) as whole:
        assert whole.end() == [0, 0], whole.everything()
        wanted = comparable(whole.copy_run(tmp_path / "wanted"))
        # What each rank writes is on its own host, until the head has it in S3.
        ranks = [
            {file.name for file in whole.disk(at).glob("ml/runs/whole/checkpoints/_actor/*/*rank_?*")} for at in (0, 1)
        ]
        assert ranks[0] and ranks[1] and not ranks[0] & ranks[1], ranks
        steps = [file.name for file in whole.disk(1).glob("ml/runs/whole/checkpoints/_actor/global_step*")]
        assert f"global_step{STEPS}" in steps and len(steps) <= 2, "its older ones are in S3, and removed"
    assert [step["global_step"] for step in wanted] == list(range(1, STEPS + 1))
    where = {who: node for node, said in PLACES.findall(whole.text(0)) for who in said.split(", ")}
    assert where["policy rank 0"] == where["trainer"] == "algo-1" and where["policy rank 1"] == "algo-2", where
    assert "the run is complete" in whole.text(1)
    kept = names(s3, f"rft/whole/snapshots/global_step{STEPS}-ended/checkpoints/_actor/global_step{STEPS}")
    assert ranks[0] | ranks[1] == {name for name in kept if re.search(r"rank_\d", name)}

    with job(tmp_path / "taken", of_two_ranks, "taken", **QUICK) as taken:
        taken.until(0, "snapshot global_step1: ")
        taken.signal(signal.SIGTERM)
        for at in range(len(NAMES)):
            taken.until(at, "waiting to be ended by SageMaker")
        assert "stopped and unfinished" in taken.text(0), taken.everything()
    committed = {name.removesuffix(".json") for name in names(s3, "rft/taken/committed")}
    newer = sorted(committed - {"global_step1"})
    assert newer[-1].endswith("-ended") and "global_step1" in committed, committed

    # Of all that was saved after the first step, the second host's part has come to S3 in half.
    for name in newer:
        (part,) = {each for each in names(s3, f"rft/taken/snapshots/{name}") if each.endswith("rng_rank_1.pt")}
        s3.delete_object(Bucket=BUCKET, Key=f"rft/taken/snapshots/{name}/{part}")
    # SageMaker begins the same containers again: the same places, nothing in them.
    with job(tmp_path / "again", of_two_ranks, "taken", **QUICK) as again:
        assert again.end() == [0, 0], again.everything()
        found = comparable(again.copy_run(tmp_path / "found"))
    for name in newer:
        missing = rf"passed over: {name}: 1 of \d+ files are missing or cut, such as \S+/rng_rank_1.pt"
        assert re.search(missing, again.text(0)), again.text(0)[:6000]
    assert all("snapshot global_step1 is restored" in again.text(at) for at in range(len(NAMES)))
    assert f"from {again.run}/checkpoints/_actor/global_step1" in again.text(0)
    assert [differing(*pair) for pair in zip(wanted, found, strict=True)] == [{}] * STEPS


def test_a_host_that_loses_its_power_ends_the_job_by_name(archive, s3, tmp_path):
    """The actor is on the head, the engine on the other, which has no part of a checkpoint."""
    with job(tmp_path / "lost", archive(), "lost", **QUICK) as lost:
        lost.until(0, "snapshot global_step1: ")
        where = {who: node for node, said in PLACES.findall(lost.text(0)) for who in said.split(", ")}
        assert (where["policy rank 0"], where["trainer"], where["vLLM engine 0"]) == ("algo-1", "algo-1", "algo-2")
        assert "snapshot global_step1: 0 files of algo-2" in lost.text(1)
        lost.hosts[1].power_off()
        assert lost.containers[0].wait(timeout=600) == 1, lost.everything()
        failure = (lost.disk(0) / "ml/output/failure").read_text()
    assert failure.startswith("error: node algo-2 (10.77.0.2) is lost, which ends the run"), failure
    assert "global_step1.json" in names(s3, "rft/lost/committed")
