"""The memory timeline: bounded, continued by a resume, by process and phase; a broken nvidia-smi hinders nothing."""

import itertools
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rft.hooks import trainer_devices
from rft.record.names import MEMORY_FILE, PHASE_FILE, TIMELINE_FILE
from rft.runs import gpu_processes, memory, timeline
from rft.runs.timeline import Timeline

ROOT = Path(__file__).resolve().parents[2]


def point(number: int, phase: str = "train", host: float = 1.0, **gpus: dict) -> dict:
    return {"time": 100.0 + 2 * number, "seconds": 2.0, "phases": {phase: 2.0}, "host_gb": {"trainer": host}, **{
        "gpu_mib": {index.removeprefix("gpu"): roles for index, roles in gpus.items()}}}  # fmt: skip


def test_a_long_run_stays_small_and_loses_neither_time_nor_peak(tmp_path):
    made, samples = Timeline(), 7001
    for number in range(samples):
        made.add(point(number, "rollout" if number % 3 else "train", host=50.0 if number == 4321 else 1.0))
    assert timeline.WHOLE / 2 <= len(made.whole) <= timeline.WHOLE and len(made.recent) == timeline.RECENT
    assert sum(one["seconds"] for one in made.whole) == 2 * samples
    for one, after in itertools.pairwise(made.whole):
        assert one["time"] + one["seconds"] == after["time"]
    phases = [sum(one["phases"].get(name, 0) for one in made.whole) for name in ("rollout", "train")]
    assert phases == [2 * sum(1 for n in range(samples) if n % 3), 2 * sum(1 for n in range(samples) if not n % 3)]
    (highest,) = [one for one in made.whole if one["host_gb"]["trainer"] == 50.0]
    assert highest["time"] <= 100 + 2 * 4321 < highest["time"] + highest["seconds"]
    assert made.recent[-1]["time"] == 100 + 2 * 7000
    made.write(tmp_path / TIMELINE_FILE)
    assert (tmp_path / TIMELINE_FILE).stat().st_size < 250_000


def test_a_resumed_run_goes_on(tmp_path):
    first = Timeline()
    for number in range(timeline.WHOLE + 1):
        first.add(point(number, host=9.0 if number == 0 else 1.0))
    first.write(tmp_path / TIMELINE_FILE)
    again = Timeline.read(tmp_path / TIMELINE_FILE)
    assert (again.whole, list(again.recent), again.peaks) == (first.whole, list(first.recent), first.peaks)
    for number in range(2):
        again.add(point(5000 + number))
    assert [one["seconds"] for one in again.whole[-2:]] == [2.0, 4.0]  # two samples a point by now
    assert again.peaks["train"]["host_gb"] == {"trainer": 9.0}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"whole": 3}'])
def test_a_damaged_file_begins_anew(tmp_path, text):
    (tmp_path / TIMELINE_FILE).write_text(text)
    assert Timeline.read(tmp_path / TIMELINE_FILE).whole == []


def test_peaks_are_of_one_sample_each_device_and_phase():
    made = Timeline()
    made.add(point(0, "train", gpu0={"trainer": 50, "engine": 10}, gpu1={"engine": 5}))
    made.add(point(1, "train", gpu0={"trainer": 20, "engine": 30}, gpu1={"engine": 70}))
    made.add(point(2, "rollout", host=3.0, gpu0={"engine": 65}))
    assert made.peaks == {
        "train": {"host_gb": {"trainer": 1.0}, "gpu_mib": {"0": {"trainer": 50, "engine": 10}, "1": {"engine": 70}}},
        "rollout": {"host_gb": {"trainer": 3.0}, "gpu_mib": {"0": {"engine": 65}}},
    }  # fmt: skip


def smi(tmp_path: Path, monkeypatch, script: str) -> Path:
    """An nvidia-smi that notes its queries; its answers are the script's."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$1" >>"{tmp_path}/asked"\n{script}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "asked"


DEVICES = "echo '0, GPU-a, 900'; echo '1, GPU-b, 4'"


def named(role: str) -> subprocess.Popen:
    """A process whose command line has a role's name in it."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", f"ray::{role}.fit"])


def test_gpu_memory_by_process(tmp_path, monkeypatch):
    processes = [named("PolicyModelActor"), named("VLLM::EngineCore"), named("PolicyModelActor")]
    try:
        a, b, c = (process.pid for process in processes)
        apps = "; ".join(f"echo '{line}'" for line in (
            f"GPU-a, {a}, 700", f"GPU-a, {b}, 100", f"GPU-b, {c}, 40", "GPU-b, 999999999, 7", f"GPU-b, {a}, [N/A]",
            "GPU-of-others, 5, 3",
        ))  # fmt: skip
        asked = smi(tmp_path, monkeypatch, f'case "$1" in *compute-apps*) {apps};; *) {DEVICES};; esac')
        meter = gpu_processes.GpuMeter()
        assert meter.read([a, b, c]) == {"0": {"all processes": 900}, "1": {"all processes": 4}}
        wanted = {"0": {"trainer": 700, "engine": 100}, "1": {"trainer": 40, "unknown": 7}}
        assert meter.read([a, b, c]) == wanted and meter.read([a, b, c]) == wanted
        assert meter.read([])["0"] == {"unknown": 800}
        assert ["gpu=" in line for line in asked.read_text().splitlines()] == [True, False, False, False]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_where_no_process_is_listed_the_devices_are_asked(tmp_path, monkeypatch):
    asked = smi(tmp_path, monkeypatch, f'case "$1" in *compute-apps*) ;; *) {DEVICES};; esac')
    meter = gpu_processes.GpuMeter()
    wanted = {"0": {"all processes": 900}, "1": {"all processes": 4}}
    assert [meter.read([]) for _ in range(4)] == [wanted] * 4
    assert ["gpu=" in line for line in asked.read_text().splitlines()] == [True, False, True, False]


@pytest.mark.parametrize("script", ["exit 9", "echo 'Failed to initialize NVML'; exit 0", "exec sleep 60"])
def test_a_broken_nvidia_smi_is_left_alone(tmp_path, monkeypatch, script):
    monkeypatch.setattr(gpu_processes, "SECONDS", 0.5)
    asked = smi(tmp_path, monkeypatch, script)
    meter = gpu_processes.GpuMeter()
    assert [meter.read([]) for _ in range(3)] == [{}, {}, {}]
    assert len(asked.read_text().splitlines()) <= (3 if "exit 0" in script else 1)


def test_the_meter_writes_what_a_run_holds(tmp_path, monkeypatch):
    smi(tmp_path, monkeypatch, "exit 1")
    run = tmp_path / "run"
    run.mkdir()
    (run / PHASE_FILE).write_text("sync\n")  # left by a kill
    marked = {**os.environ, memory.MARK: str(run)}
    holder = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)", "PPOTrainer"], env=marked)
    meter = subprocess.Popen([sys.executable, "-m", "rft.runs.memory", str(run)], cwd=ROOT, env=marked)
    try:
        deadline = time.monotonic() + 60
        while not (run / TIMELINE_FILE).exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not (run / PHASE_FILE).exists()
        (run / PHASE_FILE).write_text("rollout\n")
        time.sleep(2 * memory.INTERVAL_SECONDS)
        meter.terminate()
        assert meter.wait(timeout=30) == 0
    finally:
        for process in (meter, holder):
            process.kill()
            process.wait()
    found = json.loads((run / TIMELINE_FILE).read_text())
    assert "controller" in found["whole"][-1]["host_gb"] and set(found["peaks"]) == {"", "rollout"}
    assert found["whole"][-1]["gpu_mib"] == {}
    assert json.loads((run / MEMORY_FILE).read_text())["peak_gb"] > 0.001
    assert not (run / PHASE_FILE).exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_gpu_is_read():
    trainer_devices.end_phase(None)
    held = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    meter = gpu_processes.GpuMeter()
    found = [meter.read([os.getpid()]) for _ in range(3)]
    print(found, torch.cuda.get_device_name())
    assert max(mib for used in found for roles in used.values() for mib in roles.values()) >= 2048
    trainer_devices.end_phase("train")
    device, peaks = trainer_devices.mine()
    assert peaks["memory_train_gb"] >= held.numel() / 1e9 and device == torch.cuda.get_device_name()
