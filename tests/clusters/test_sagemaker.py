"""A job of SageMaker with the real launcher: taken away in the middle, begun again on an empty disk. S3 is moto's."""

import shutil
import signal
import subprocess

import pytest
from compared import comparable, differing
from s3_server import served
from sagemaker_jobs import BUCKET, ROOT, Job, image

from rft.runs.find import read_json
from rft.runs.memory import marked_processes
from rft.sagemaker import source

STEPS = 6
OPTIONS = ["--max_samples", str(32 * STEPS), "--save_steps", "1", "--full_determinism"]
CUT = b'{"launch.json": 900, "checkpoints/_actor/latest": 12}'
WARM = ROOT / ".cache/rft/warmstart"  # a minute less, where a launch has been made here


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> bytes:
    """Of the commit that is checked out here."""
    clone = tmp_path_factory.mktemp("clone") / "rft"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", clone], check=True)
    return source.archive(clone, "launch/train_grpo_tiny.sh", OPTIONS)


def test_a_job_that_is_taken_away_ends_with_the_numbers_of_one_that_is_not(archive, tmp_path):
    with served(BUCKET) as (environment, s3):
        environment |= {"PREFLIGHT": "0"}
        whole, taken = (Job(tmp_path / name, archive, environment) for name in ("whole", "taken"))
        try:
            if WARM.is_dir():
                shutil.copytree(WARM, tmp_path / "whole/ml1/cache/warmstart")
            whole.begin(image(tmp_path / "whole/image"), RFT_SAGEMAKER_S3=f"s3://{BUCKET}/rft/whole")
            assert whole.end() == 0, whole.said()[-6000:]

            shutil.copytree(whole.root / "cache/warmstart", tmp_path / "taken/ml1/cache/warmstart")
            process = taken.begin(image(tmp_path / "taken/image"))
            taken.until("snapshot global_step1: ", seconds=900)
            process.send_signal(signal.SIGTERM)
            taken.until("waiting to be ended by SageMaker")
            process.kill()
            process.wait()
            assert "stopped and unfinished" in taken.said(), taken.said()[-6000:]
            assert not marked_processes(str(taken.root / "runs/job"))
            shutil.rmtree(tmp_path / "taken/image")
            shutil.move(taken.root, tmp_path / "gone")

            # A newer copy that was cut, and one that was not finished.
            for name in ("global_step8", "global_step9"):
                s3.put_object(Bucket=BUCKET, Key=f"rft/job/snapshots/{name}/launch.json", Body=b"{")
            s3.put_object(Bucket=BUCKET, Key="rft/job/committed/global_step8.json", Body=CUT)
            # SageMaker begins the same container again: the same places, nothing in them.
            taken.starts -= 1
            taken.begin(image(tmp_path / "taken/image"))
            assert taken.end() == 0, taken.said()[-6000:]
        finally:
            whole.close()
            taken.close()
        assert "passed over: global_step8: 2 of 2 files are missing or cut" in taken.said()
        assert "passed over: global_step9: its copy was not finished" in taken.said()
        assert "resuming " in taken.said() and "-ended is restored" in taken.said()
        runs = [whole.root / "runs/whole", taken.root / "runs/job"]
        wanted, found = (comparable(run) for run in runs)
        assert [step["global_step"] for step in found] == list(range(1, STEPS + 1))
        assert [differing(*pair) for pair in zip(wanted, found, strict=True)] == [{}] * STEPS
        results = [read_json(run / "result.json") for run in runs]
        assert len({result["after"][result["after"]["mode"]] for result in results}) == 1
        kept = s3.list_objects_v2(Bucket=BUCKET, Prefix="rft/job/committed/")["Contents"]
        print(sorted(entry["Key"].rpartition("/")[2] for entry in kept))
