"""What one node can say about itself, one function a check; in the order of the page."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import requests

from rft.code_server.client import CodeServerError
from rft.record.flags import flag
from rft.runs.code_server import SECONDS, SERVER
from rft.runs.preflight import driver, machine, software
from rft.runs.preflight.gpus import read_gpus
from rft.runs.preflight.lines import GO, NO_GO, WARN, Line
from rft.runs.ranks import free_port
from rft.runs.service import wait

MEGABYTES = 64  # written to each place
SLOW = 30.0  # MB/s: a checkpoint of 20b's adapter and optimizer, 100 MB, should not hold up a step
HUB = "https://huggingface.co"


def check_all(places: list[Path], gpus: int | None) -> Iterator[Line]:
    """Every line of this node.

    Args:
        places: folders that runs write to.
        gpus: that this node must have; None where the stack is the CPU's.
    """
    yield check_modules()
    yield check_gpus(gpus)
    yield from driver.check_driver()
    yield from software.check_patches()
    yield from software.check_versions()
    yield check_hub()
    yield from map(check_place, places)
    yield check_code_server()
    yield check_retriever()
    yield from machine.check_ports()


def check_modules() -> Line:
    """Those that the job has loaded: the job ends before where one is not there."""
    return Line("modules", GO, os.environ.get("LOADEDMODULES", "").replace(":", " ") or "none asked for")


def check_gpus(wanted: int | None) -> Line:
    """As many as the preset says."""
    if wanted is None:
        return Line("GPUs", GO, "none asked for (RFT_STACK=cpu)")
    found = read_gpus() or []
    names = ", ".join(sorted({gpu["name"] for gpu in found}))
    if len(found) == wanted:
        return Line("GPUs", GO, f"{wanted} x {names}")
    measured = f"{len(found)} {names}, {wanted} wanted"
    return Line(
        "GPUs", NO_GO, measured, "SBATCH_GRES=gpu:N and GPUS_PER_NODE=N of this cluster, or SBATCH_EXCLUDE=NODE"
    )


def check_hub() -> Line:
    """The hub answers, or nothing asks it."""
    if flag("HF_HUB_OFFLINE"):
        return Line("hub", GO, f"offline; HF_HOME={os.environ.get('HF_HOME', 'unset')}")
    try:
        status = requests.head(os.environ.get("HF_ENDPOINT", HUB), timeout=10, allow_redirects=True).status_code
    except requests.RequestException as error:
        return Line(
            "hub", NO_GO, f"no answer: {type(error).__name__}", "export HF_HUB_OFFLINE=1, and models as folders"
        )
    if status >= 400:
        return Line("hub", NO_GO, f"status {status}", "export HF_HUB_OFFLINE=1, and models as folders")
    return Line("hub", GO, "answers")


def check_place(place: Path) -> Line:
    """How fast a file of MEGABYTES is written there, down to the disk."""
    name, block = f"writes {place}", os.urandom(1 << 20)
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place, prefix=".rft-smoke-") as file:
            started = time.monotonic()
            for _ in range(MEGABYTES):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            rate = MEGABYTES / (time.monotonic() - started)
    except OSError as error:
        return Line(name, NO_GO, str(error), "another RUN_DIR, JOB_SCRATCH or TMPDIR, or free some space there")
    if rate < SLOW:
        return Line(name, WARN, f"{rate:.0f} MB/s", "another RUN_DIR, JOB_SCRATCH or TMPDIR, on a faster disk")
    return Line(name, GO, f"{rate:.0f} MB/s")


def check_code_server() -> Line:
    """One on this node's loopback answers, with its isolation."""
    port = free_port()
    command = [sys.executable, "-m", "rft.code_server", "--host", "127.0.0.1", "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            isolation = wait(SERVER, f"http://127.0.0.1:{port}", SECONDS, server.pid)["isolation"]
        except CodeServerError as error:
            log.seek(0)
            tail = log.read().decode(errors="replace").strip().splitlines()[-1:]
            return Line("code server", NO_GO, " ".join([str(error), *tail]), "see docs/code_rewards.md, What it needs")
        finally:
            server.terminate()
            server.wait()
    return Line("code server", GO, f"isolation {isolation}")


def check_retriever() -> Line:
    """The one at RETRIEVER_URL answers a query from here, whatever proxies the job has."""
    url = os.environ.get("RETRIEVER_URL")
    if not url:
        return Line("retriever", GO, "not asked for")
    token = os.environ.get("RETRIEVER_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        asked = requests.post(f"{url}/retrieve", json={"queries": ["smoke"], "topk": 1}, headers=headers, timeout=30)
    except requests.RequestException as error:
        repair = "open that port between the cluster's nodes, or RETRIEVER_PORT=PORT for one that is"
        return Line("retriever", NO_GO, f"{url}: {type(error).__name__}", repair)
    if asked.status_code != 200:
        repair = "NO_PROXY must name the retriever's host exactly" if asked.status_code == 403 else "read its log"
        return Line("retriever", NO_GO, f"{url}: status {asked.status_code}", repair)
    return Line("retriever", GO, f"{url} answers")
