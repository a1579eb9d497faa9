"""Jobs as SageMaker starts them: the container's entry point as a process, on a folder that stands for /opt/ml."""

import hashlib
import json
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
# for which it waits after step --hold. OTHER is the run's directory on another host, whose rank writes there.
TOY = """
set -Eeuo pipefail
steps=3 hold=-1 fail=0 rule=0 options=("$@")
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
    while ((step == hold && !stop)) && [[ ! -e $RUN_DIR/go_on ]]; do sleep 0.05; done
    step=$((step + 1))
    echo "{\\"global_step\\": $step}" >>"$RUN_DIR/training_metrics.jsonl"
    mkdir -p "$states/global_step$step" && echo "state $step" >"$states/global_step$step/state"
    if [[ -n ${OTHER:-} ]]; then
        mkdir -p "$OTHER/checkpoints/_actor/global_step$step"
        echo "state $step of rank 1" >"$OTHER/checkpoints/_actor/global_step$step/state_of_rank_1"
    fi
    printf global_step$step >"$states/latest"
    ((step <= 2)) || rm -rf "$states/global_step$((step - 2))"
    if ((stop)); then echo "saved at $step"; exit 11; fi
done
if ((fail)); then
    printf 'error: no luck\\n  found:  %d\\n' "$fail" >&2
    exit "$fail"
fi
((!rule)) || echo '{"stopped": {"global_step": 3, "rule": "kl", "reason": "0.4 > 0.2"}}' >"$RUN_DIR/run.json"
exit "$rule"
"""
RESUME = 'mapfile -t options <"$1/launch.json"\nRUN_DIR=$1 exec bash launch/train_toy.sh "${options[@]}"\n'


# In place of Ray's nodes: one that is there as long as its container, and a driver that has all GPUs.
NODE = """
case $1 in
head | worker)
    echo "$* at $NODE_ADDRESS"
    while kill -0 $PPID 2>/dev/null && [[ ! -e ${GONE:-/nothing} ]]; do sleep 0.1; done
    echo "error: this node's Ray has ended"
    exit 1
    ;;
driver)
    echo "$2 GPUs at $3"
    exec "${@:4}"
    ;;
esac
"""


def toy(place: Path) -> Path:
    """A checkout with the toy launcher, committed."""
    (place / "launch").mkdir(parents=True)
    (place / "launch/train_toy.sh").write_text(TOY)
    (place / "launch/resume.sh").write_text(RESUME)
    (place / "launch/node.sh").write_text(NODE)
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "toy"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], cwd=place, check=True)
    return place


def image(place: Path, known_as: Path | None = None) -> Path:
    """What the image has: the environment, set up for this folder, here by links to our own.

    Args:
        known_as: its path where it is used, if that is another one.
    """
    (place / ".venv-cpu").mkdir(parents=True)
    for part in ("bin", "lib", "pyvenv.cfg"):
        (place / ".venv-cpu" / part).symlink_to(ROOT / ".venv-cpu" / part)
    made_of = b"".join((ROOT / name).read_bytes() for name in ("requirements/cpu.txt", "pyproject.toml"))
    # as launch/setup.sh writes it
    stamp = f"stack cpu, root {known_as or place}, {hashlib.sha256(made_of).hexdigest()}  -\n"
    (place / ".venv-cpu/.rft-setup").write_text(stamp)
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

    def begin(
        self, checkout: Path | None = None, hosts: tuple[str, ...] = (), here: str = "", **variables: str
    ) -> subprocess.Popen:
        """Start a container, SageMaker's variables and `variables` in its environment; of `hosts`, that of `here`."""
        self.starts += 1
        channel = self.root / "input/data" / SOURCE
        channel.mkdir(parents=True)
        (channel / "source.tar.gz").write_bytes(self.archive)
        if hosts:
            (self.root / "input/config").mkdir()
            told = {"current_host": here, "hosts": hosts, "network_interface_name": "eth0"}
            (self.root / "input/config/resourceconfig.json").write_text(json.dumps(told))
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
