"""Every test runs on the CPU, offline, with the settings that make the stack start fast."""

import os

for name, value in {
    "DS_ACCELERATOR": "cpu",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}.items():
    os.environ.setdefault(name, value)
