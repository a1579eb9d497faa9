"""OpenRLHF's `train_ppo_ray` as it is, but the rollout engines are up before the actor begins to load.

A vLLM engine sizes its KV cache from the device's free memory while it starts, and stops where other processes take or
give memory meanwhile (vllm/v1/worker/gpu_worker.py, determine_available_memory). With `--colocate_all_models` the
actor loads on the same device at that very time.
"""

import runpy

import openrlhf.trainer.ray as stack
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call

create_vllm_engines = stack.create_vllm_engines


def create_and_wait(*args, **kwargs) -> list:
    """`create_vllm_engines`, returning when every engine answers."""
    engines = create_vllm_engines(*args, **kwargs)
    batch_vllm_engine_call(engines, "get_num_unfinished_requests")
    return engines


if __name__ == "__main__":
    stack.create_vllm_engines = create_and_wait
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)
