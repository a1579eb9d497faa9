"""The driver's check, against versions of CUDA's release notes and a program in nvidia-smi's place."""

import pytest

from rft.runs.preflight.driver import check_driver, judge


@pytest.mark.parametrize(
    ("driver", "capability", "verdicts"),
    [
        ("570.86.15", "9.0", ["go"]),
        ("570.26", "9.0", ["go"]),
        ("565.57.01", "9.0", ["warn"]),  # CUDA 12.7, as GH200 systems had
        ("525.60.13", "9.0", ["warn"]),
        ("525.60", "9.0", ["no-go"]),
        ("470.82.01", "8.0", ["no-go", "warn"]),
        ("580.65.06", "10.0", ["warn"]),  # newer, but no sm_90a
        ("570.86.15", "[N/A]", ["warn"]),
    ],
)
def test_driver_is_judged_by_cudas_release_notes(driver, capability, verdicts):
    assert [line.verdict for line in judge(driver, capability)] == verdicts


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Put a shell script in the program's place."""

    def place(script: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("RFT_STACK", raising=False)
    return place


def test_two_kinds_of_gpu_are_two_lines(nvidia_smi, monkeypatch):
    nvidia_smi("printf '565.57.01, 9.0\\n565.57.01, 9.0\\n565.57.01, 8.0\\n'")
    assert [line.verdict for line in check_driver()] == ["warn", "warn", "warn"]
    for stack in ("cpu", "cpu-0.9.4"):
        monkeypatch.setenv("RFT_STACK", stack)
        assert [line.measured for line in check_driver()] == ["no GPU used"]


def test_a_driver_that_does_not_answer_is_named(nvidia_smi):
    nvidia_smi("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    [line] = check_driver()
    assert line.verdict == "no-go" and "Driver/library version mismatch" in line.measured
