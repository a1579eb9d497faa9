"""Jobs as SageMaker starts them: the container's entry point as a process, on a folder that stands for /opt/ml."""

import os
import subprocess
import sys
import time
from pathlib import Path

from rft.sagemaker import source
from rft.sagemaker.jobs import S3_VARIABLE, SOURCE

ROOT = Path(__file__).resolve().parents[2]
BUCKET = "bucket"
FOLDER = f"s3://{BUCKET}/rft/job"
# A launcher that counts: a checkpoint after each step, one more where it is asked to stop,
# for which it waits at --hold.
TOY = """
set -Eeuo pipefail
steps=3 hold=0 fail=0 rule=0 options=("$@")
while (($#)); do
    case $1 in --steps) steps=$2 ;; --hold) hold=$2 ;; --fail) fail=$2 ;; --rule) rule=$2 ;; --read) cat -- "$2" ;; esac
    shift 2
done
states=$RUN_DIR/checkpoints/_actor
mkdir -p "$states" "$CACHE_ROOT"
printf '%s\\n' "${options[@]}" >"$RUN_DIR/launch.json"
stop=0
trap 'stop=1' TERM
step=0
[[ ! -f $states/latest ]] || step=$(sed s/global_step// "$states/latest")
echo "begins at step $step with SEED=${SEED:-} in $SAVE_SECONDS s"
while ((step < steps)); do
    step=$((step + 1))
    echo "{\\"global_step\\": $step}" >>"$RUN_DIR/training_metrics.jsonl"
    mkdir -p "$states/global_step$step" && echo "state $step" >"$states/global_step$step/state"
    printf global_step$step >"$states/latest"
    ((step <= 2)) || rm -rf "$states/global_step$((step - 2))"
    if ((stop)); then echo "saved at $step"; exit 11; fi
    while ((step == hold && !stop)) && [[ ! -e $RUN_DIR/go_on ]]; do sleep 0.05; done
done
if ((fail)); then
    printf 'error: no luck\\n  found:  %d\\n' "$fail" >&2
    exit "$fail"
fi
((!rule)) || echo '{"stopped": {"global_step": 3, "rule": "kl", "reason": "0.4 > 0.2"}}' >"$RUN_DIR/run.json"
exit "$rule"
"""
RESUME = 'mapfile -t options <"$1/launch.json"\nRUN_DIR=$1 exec bash launch/train_toy.sh "${options[@]}"\n'


def toy(place: Path) -> Path:
    """A checkout with the toy launcher, committed."""
    (place / "launch").mkdir(parents=True)
    (place / "launch/train_toy.sh").write_text(TOY)
    (place / "launch/resume.sh").write_text(RESUME)
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "toy"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], cwd=place, check=True)
    return place


class Job:
    """A job of one archive; each `begin` is a container on an empty disk."""

    def __init__(self, place: Path, archive: bytes, environment: dict[str, str]) -> None:
        self.place, self.archive, self.environment, self.starts = place, archive, environment, 0
        self.process: subprocess.Popen | None = None

    @property
    def root(self) -> Path:
        return self.place / f"ml{self.starts}"

    @property
    def out(self) -> Path:
        return self.place / f"out{self.starts}"

    def begin(self, checkout: Path | None = None, **variables: str) -> subprocess.Popen:
        """Start a container, SageMaker's variables and `variables` in its environment."""
        self.starts += 1
        channel = self.root / "input/data" / SOURCE
        channel.mkdir(parents=True)
        (channel / "source.tar.gz").write_bytes(self.archive)
        checkout = checkout or self.place / f"image{self.starts}"
        command = [sys.executable, "-m", "rft.sagemaker.container", "train", "--root", str(self.root)]
        given = {S3_VARIABLE: FOLDER, "TRAINING_JOB_NAME": "job"} | self.environment | variables
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, "--checkout", str(checkout)], cwd=ROOT, env=os.environ | given, stdout=out, stderr=out
            )
        return self.process

    def said(self) -> str:
        return self.out.read_text(errors="replace")

    def until(self, moment, seconds: float = 120) -> None:
        """Wait for a text in what is said, or for what is called to be true."""
        deadline = time.monotonic() + seconds
        while not (moment in self.said() if isinstance(moment, str) else moment()):
            assert self.process.poll() is None and time.monotonic() < deadline, self.said()[-6000:]
            time.sleep(0.05)

    def end(self) -> int:
        """Its status, once it has ended by itself."""
        return self.process.wait(timeout=1500)

    def close(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def toy_job(place: Path, environment: dict[str, str], *options: str) -> Job:
    """A job of the toy launcher."""
    return Job(place, source.archive(toy(place / "checkout"), "launch/train_toy.sh", list(options)), environment)
