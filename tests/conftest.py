"""Every test runs on the CPU, offline, with the settings that make the stack start fast."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

for name, value in {
    "DS_ACCELERATOR": "cpu",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "RAY_prestart_worker_first_driver": "0",  # workers that no actor takes
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # to join clusters of launch/ray.sh, which are on the loopback
    "TOKENIZERS_PARALLELISM": "false",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}.items():
    os.environ.setdefault(name, value)

# What a script starts with `&` ignores Ctrl-C, and so would all that tests start, to which they send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no fault of the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """An untrained tiny gpt-oss with MXFP4 experts."""
    from rft.tiny.checkpoint import build_model, save_checkpoint  # torch and transformers: seconds for those who ask

    path = tmp_path_factory.mktemp("tiny-gpt-oss")
    save_checkpoint(build_model(seed=3), path)
    return path
