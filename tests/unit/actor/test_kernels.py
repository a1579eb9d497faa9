"""The experts' kernels against their references: in Triton's interpreter, and on a GPU where there is one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.actor_checks import CHECKS

ROOT = Path(__file__).parents[3]


def test_in_tritons_interpreter():
    """In a process of its own: the interpreter must be asked for before anything imports triton."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.actor_checks"],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(f"{name.replace('_', ' ')}: " in done.stdout for name in CHECKS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", CHECKS)
def test_on_a_gpu(name):
    CHECKS[name]("cuda")
