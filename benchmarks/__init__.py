"""Measurements at real size, run by hand on GPU machines; docs/benchmarks.md says how and holds the results.

Importing the package sets the environment that the stack reads while it is imported; values that are set stay.
"""

import os
import shutil
from pathlib import Path

from rft.record.environment import set_environment, stack

ROOT = Path(__file__).resolve().parents[1]

# As torch would say, without the seconds of its import.
GPU = shutil.which("nvidia-smi") is not None and stack() == "gpu"

MORE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}  # as launch/stack.sh sets them
if GPU:  # asking for the device count alone makes CUDA unusable in a forked child
    MORE["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"

ADDED = {name: value for name, value in MORE.items() if name not in os.environ}
os.environ.update(ADDED)
ADDED |= set_environment()
