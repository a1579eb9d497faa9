"""A job of this container, and the ways in which it ends, with what SageMaker reads of each."""

import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

from rft.record.files import replace_json, replace_text
from rft.runs.ending import ending
from rft.sagemaker.launch import LONGEST, Stop, say
from rft.sagemaker.places import Place

GRACE = 120  # seconds that SageMaker gives after SIGTERM
SAVE_SECONDS = 90  # of them the launcher's
STOPPED_BY_RULE = 10  # status of a launcher


class Job(NamedTuple):
    """A job of this container.

    Args:
        root: /opt/ml.
        checkout: where the archive is unpacked; the image's, which has the environment.
        run: the run's directory.
        place: the job's folder in S3; None where nothing is uploaded.
    """

    root: Path
    checkout: Path
    run: Path
    place: Place | None

    @property
    def cache(self) -> Path:
        return self.root / "cache"


def reason_of(job: Job, status: int) -> str:
    """Why a launcher has ended with 0, or with a rule's status."""
    manifest = job.run / "run.json"
    stopped = json.loads(manifest.read_text()).get("stopped", {}) if manifest.is_file() else {}
    return f"{ending(stopped)[1]}: {stopped.get('reason', '')}".rstrip(": ") if status else "the run is complete"


def complete(job: Job, status: int, reason: str) -> int:
    """0, with the reason where a rule has stopped the run."""
    say(reason)
    replace_json(job.root / "output/data/outcome.json", {"status": status, "reason": reason})
    return 0


def failed(job: Job, why: str, status: int) -> int:
    """The exit status of a failure, and why, where SageMaker reads it."""
    why = why[:LONGEST]
    print(why, file=sys.stderr, flush=True)
    replace_text(job.root / "output/failure", why)
    return status if 0 < status < 126 else 1


def told_to_stop(job: Job, stop: Stop) -> int:
    """143, or 130 after SIGINT, once SageMaker has had the time to end this container."""
    say("unfinished, as this job was told to stop")
    if job.place:
        # AWS does not say what it makes of a status within these seconds; a container that it ends itself has none.
        say("waiting to be ended by SageMaker")
        time.sleep(max(0.0, stop.at + GRACE + 60 - time.monotonic()))
    return 128 + stop.number


def seconds_left(stop: Stop, otherwise: float) -> float:
    """What is left after SIGTERM to upload; `otherwise` where none has come."""
    return otherwise if stop.at is None else GRACE - 5 - (time.monotonic() - stop.at)
