"""Evaluate models on datasets: cached samples first, then the engine, then grades, summaries and paired comparisons."""

import hashlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rft import overlay
from rft.evals import cache, sampling
from rft.evals.agent import Agent, opened, require_room
from rft.evals.compare import add_comparisons
from rft.evals.identity import agent_identity, grader_digest, model_identity
from rft.evals.models import Model, adapter_room
from rft.evals.programs import judge_of, judged
from rft.evals.prompts import Prompt, load_tokenizer, render, require_short
from rft.evals.refusals import require_agent
from rft.evals.scores import record, summarize
from rft.evals.settings import Settings
from rft.problems import read_problems
from rft.record.digest import tree_digest

AGAIN = " (A/A)"
Run = tuple[Model, int]  # the first model may be evaluated twice, the second time as repeat 1
Problems = dict[Path, list[dict]]  # by dataset
Prompts = dict[tuple[Path, Path], list[Prompt]]  # by base and dataset


def evaluate(models: list[Model], datasets: list[Path], settings: Settings) -> list[dict]:
    """One result a model and dataset, in the order given; the first model is the one that others are compared with.

    Before an engine starts: mode, problem files, lengths of prompts and cache files are checked (the models in
    `rft.evals.models.checked`), and an agent's retriever. With the engine: each adapter's probe, kernels of cached
    samples. After sampling: whether any label can be graded. An engine starts only for samples that the cache lacks.
    Where labels are tests of programs, a code server judges: that at CODE_SERVER_URL, else one that is started before
    the engine and ends here.

    Raises:
        ValueError: bad input, or a probe that failed; no result then. What was drawn so far is in the cache.
        CodeServerError: the code server gives no verdicts; likewise.
        RetrieverError: the retriever gives no passages; likewise.
        ConversationError: a turn of an agent failed otherwise; likewise.
        OSError: the disk is full.
    """
    settings.drawn()
    problems = _problems(datasets, settings)
    prompts, templates = _render(models, problems, settings)
    agent = _agent(models, prompts, settings)
    rooms = {base: adapter_room(models, base, settings.serving, settings.lora_rank) for base, _ in prompts}
    runs = [(model, 0) for model in models]
    if settings.noise_floor:
        runs.insert(1, (models[0], 1))
    streams = _streams(runs, settings, rooms, agent)
    results = []
    with judge_of(problem for asked in problems.values() for problem in asked) as url:
        _draw_missing(streams, prompts, settings, rooms, agent)
        for run in runs:
            for path, asked in problems.items():
                rendered = prompts[run[0].base, path]
                records = _records(asked, rendered, streams[run]["samples"], settings, url)
                result = _described(run, streams[run], settings, agent) | {
                    "dataset": path.name,
                    "template": templates[run[0].base],
                    "first_prompt": rendered[0].text,
                    "problems": tree_digest(path),
                    "grader": grader_digest(asked),
                }
                results.append(result | summarize(records, settings.mode) | {"records": records})
    return add_comparisons(results, settings.seed)


def _problems(datasets: list[Path], settings: Settings) -> Problems:
    problems = {path: read_problems(path) for path in datasets}
    if len({path.name for path in problems}) < len(datasets):
        raise ValueError("found two datasets with one file name; numbers are labelled by it; rename one")
    for path, asked in problems.items():
        require_agent(path, asked, settings.agent is not None)
    return problems


def _render(models: list[Model], problems: Problems, settings: Settings) -> tuple[Prompts, dict[Path, str]]:
    """Prompts by base and dataset, and the digest of each base's chat template."""
    prompts, templates = {}, {}
    for base in dict.fromkeys(model.base for model in models):
        tokenizer = load_tokenizer(base)
        for path, asked in problems.items():
            prompts[base, path] = render(tokenizer, asked, settings.system_prompt, settings.reasoning_effort)
            require_short(asked, prompts[base, path], settings.max_prompt_tokens)
        templates[base] = hashlib.sha256(tokenizer.chat_template.encode()).hexdigest()[:16]
    return prompts, templates


def _agent(models: list[Model], prompts: Prompts, settings: Settings) -> Agent | None:
    """The agent with its retriever; None where nothing is searched."""
    if settings.agent is None:
        return None
    agent = opened(settings.agent, models, settings.max_length)
    for (_, path), rendered in prompts.items():
        require_room(path, min(len(prompt.tokens) for prompt in rendered), agent, settings.max_tokens)
    return agent


def _streams(runs: list[Run], settings: Settings, rooms: dict[Path, dict], agent: Agent | None) -> dict[Run, dict]:
    """What is known of each run's samples: `stream` (its identity), `file`, `header`, `samples`.

    Two names of one model share what is drawn.
    """
    temperature, tree_ids = settings.drawn()[1], overlay.tree_ids()
    asked = {"agent": agent_identity(agent)} if agent else {}
    streams, shared = {}, {}
    for model, repeat in runs:
        drawn = sampling.parameters(temperature, settings.top_p, settings.max_tokens, settings.seed, repeat)
        stream = model_identity(model, settings, tree_ids) | {"room": rooms[model.base], "sampling": drawn} | asked
        name = cache.stream_file(Path(), stream)
        if name not in shared:
            file = cache.stream_file(settings.cache, stream) if settings.cache else None
            header, found = cache.read_samples(file) if file else (None, {})
            shared[name] = {"stream": stream, "file": file, "header": header or {}, "samples": found}
        streams[model, repeat] = shared[name]
    return streams


def _records(
    problems: list[dict], prompts: list[Prompt], samples: cache.Samples, settings: Settings, url: str | None
) -> list[dict]:
    """The graded records of one run on one dataset; programs are judged by the server at `url`."""
    records = [
        record(problem, samples[prompt.digest, index], prompt.channel)
        for problem, prompt in zip(problems, prompts, strict=True)
        for index in range(settings.drawn()[0])
    ]
    return judged(records, {prompt.digest: prompt.text for prompt in prompts}, url)


def _described(run: Run, state: dict, settings: Settings, agent: Agent | None) -> dict:
    """What a result says of a run whatever its dataset."""
    model, repeat = run
    return {
        "model": model.name + AGAIN * repeat,
        "kind": model.kind,
        "mode": settings.mode,
        "temperature": settings.drawn()[1],
        "top_p": settings.top_p,
        "seed": settings.seed + repeat,
        "max_tokens": settings.max_tokens,
        "reasoning_effort": settings.reasoning_effort or "the template's own",
        "system_prompt": settings.system_prompt,
        "served": state["header"].get("served"),
        "weights": {key: state["stream"][key] for key in ("base", "adapter")},
        "tree_id": overlay.tree_ids(),
        **({"agent": agent.identity(), "retriever": agent.retriever} if agent else {}),
    }


def _draw_missing(
    streams: dict[Run, dict], prompts: Prompts, settings: Settings, rooms: dict[Path, dict], agent: Agent | None
) -> None:
    """Draw what the streams lack. Models of one base follow each other, the base itself first."""
    from rft.evals.server import Server

    needed: dict[Path, dict[str, Prompt]] = {}
    for (base, _), rendered in prompts.items():
        needed.setdefault(base, {}).update({prompt.digest: prompt for prompt in rendered})
    bases, draw = list(needed), _drawing(agent)
    server = Server(
        settings.max_length,
        {base: [prompt.tokens for prompt in list(rendered.values())[:8]] for base, rendered in needed.items()},
        {base: {**room, "head_dtype": settings.head_dtype} for base, room in rooms.items()},
        settings.serving,
        settings.reference,
        settings.tensor_parallel_size,
    )
    try:
        for run in sorted(streams, key=lambda key: (bases.index(key[0].base), key[0].kind == "adapter")):
            model, state = run[0], streams[run]
            requests = _missing(needed[model.base], settings.drawn()[0], state["samples"])
            if not requests:
                continue
            llm, lora_request, served = server.serve(model)
            _say(model, served)
            require_same_kernels(state, served)
            state["header"] = state["header"] or state["stream"] | {"model": model.name, "served": served}
            draw(llm, requests, state["stream"]["sampling"], partial(_keep, state), lora_request)
    finally:
        server.close()


def _drawing(agent: Agent | None) -> Callable[..., None]:
    """What draws samples: answers of one turn, or conversations."""
    if agent is None:
        return sampling.draw
    from rft.evals import conversations

    return partial(conversations.draw, agent=agent)


def _missing(prompts: dict[str, Prompt], samples: int, found: cache.Samples) -> list[sampling.Request]:
    return [
        sampling.Request(digest, prompt.tokens, index)
        for digest, prompt in prompts.items()
        for index in range(samples)
        if (digest, index) not in found
    ]


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
