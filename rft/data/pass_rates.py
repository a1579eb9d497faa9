"""Estimate how often a model solves each problem: n samples a problem, kept in an append-only cache."""

import fcntl
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import rft.grading
from rft import overlay
from rft.code.labels import is_code_label
from rft.data import verdicts
from rft.data.curriculum import read_dataset
from rft.data.row_files import require_apart, write_rows, written_together
from rft.data.verdicts import Response, are_correct, code_grader, require_code_server, require_no_search
from rft.hooks import chat_date, reasoning_effort
from rft.problems import parse_line
from rft.record.digest import tree_digest
from rft.record.readers import read_jsonl

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHUNK = 64  # problems between two writes to the cache: what a kill loses at most
FIRST = b'{"run": "'  # how a line of the cache begins


class Sampling(NamedTuple):
    """How responses are sampled."""

    n: int  # samples a problem
    temperature: float
    top_p: float
    max_tokens: int
    max_prompt_tokens: int
    seed: int
    effort: str | None = None  # the template's `reasoning_effort`; None leaves it to the template


def estimate(model: str, dataset: Path, sampling: Sampling, cache: Path, out: Path) -> list[dict]:
    """Write `out`, a row for each problem of `dataset`: `id`, `pass_rate`, `n`, `correct`, `truncated`.

    Problems with tests for a label are judged by the code server that CODE_SERVER_URL names (`rft.code_server`).

    Samples already in `cache` are not drawn again: a killed estimation resumes, and a larger `n` adds to a smaller.
    The engine starts only where samples are missing. The cache holds one line a sample and only grows.

    Raises:
        ValueError: bad input; another process writes the cache; a broken line in the middle of the cache; no code
            server where one is needed.
    """
    if sampling.n < 1 or (sampling.temperature == 0 and sampling.n > 1):
        raise ValueError(
            f"found --n {sampling.n} at temperature {sampling.temperature}, wanted at least 1, and 1 alone at "
            "temperature 0, where samples are all the same; pass another --n or --temperature"
        )
    require_apart([out], [dataset, cache])
    problems = read_dataset(dataset)
    require_no_search(row["label"] for row in problems)
    run = run_key(model, sampling)
    with locked(cache) as stream:
        known = {(r["run"], r["problem"], r["index"]): r for r in read_jsonl(cache)}
        keys = [problem_key(row) for row in problems]
        missing = [
            (row, key, i)
            for row, key in zip(problems, keys, strict=True)
            for i in range(sampling.n)
            if (run, key, i) not in known
        ]
        if missing:
            require_code_server(row["label"] for row, _, _ in missing)
            for record in sample(model, missing, sampling):
                known[run, record["problem"], record["index"]] = record
                stream.write(json.dumps({"run": run, **record}) + "\n")
                stream.flush()
    rates = [
        rate_row(row["id"], [known[run, key, i] for i in range(sampling.n)])
        for row, key in zip(problems, keys, strict=True)
    ]
    with written_together(out.parent, [out.name]) as paths:
        write_rows(paths[out.name], rates)
    return rates


def from_evaluation(file: Path, dataset: Path, out: Path) -> list[dict]:
    """The same rows from an evaluation's result file: of an agent's conversations, which are not sampled here.

    Args:
        file: of `eval_posthoc.py --output`, with one result, of several samples a problem.

    Raises:
        ValueError: the file has none or several, of one sample a problem, or lacks problems of `dataset`.
    """
    from rft.evals.results import read_results

    require_apart([out], [dataset, file])
    problems, results = read_dataset(dataset), read_results([file])
    if len(results) != 1 or results[0]["samples_per_problem"] < 2 or not results[0].get("temperature"):
        found = ", ".join(
            f"{r['model']} on {r['dataset']}, {r['samples_per_problem']} a problem, {r['mode']}" for r in results
        )
        raise ValueError(
            f"{file}: found {len(results)} results ({found}), wanted one, with two samples a problem or more; evaluate "
            "one model with --mode sampling_pass@8"
        )
    records = defaultdict(list)
    for record in results[0]["records"]:
        records[record["id"], record["label"]].append(record)
    missing = [row["id"] for row in problems if (row["id"], row["label"]) not in records]
    if missing:
        raise ValueError(
            f"{file}: found no sample of {len(missing)} problems of {dataset} with these labels, {missing[0]!r} first; "
            "wanted an evaluation of it"
        )
    rates = [rate_row(row["id"], records[row["id"], row["label"]]) for row in problems]
    with written_together(out.parent, [out.name]) as paths:
        write_rows(paths[out.name], rates)
    return rates


def rate_row(identifier: str, samples: list[dict]) -> dict:
    """The row of one problem, from its samples."""
    correct = sum(s["correct"] for s in samples)
    return {
        "id": identifier,
        "pass_rate": correct / len(samples),
        "n": len(samples),
        "correct": correct,
        "truncated": sum(s["truncated"] for s in samples),
    }


def run_key(model: str, sampling: Sampling) -> str:
    """Content hash of all that decides a sample but its problem and index.

    Weights, temperature, top-p, completion length, seed, effort, the prompts' date and grader; and what the
    evaluation's cache calls its engine: versions, patches, device, and the code that samples.
    """
    from rft.evals.identity import model_identity
    from rft.evals.models import Model
    from rft.evals.settings import Settings

    path = Path(model)
    parts = [
        model_identity(Model("base", path, "base", path.resolve()), Settings(), overlay.tree_ids()),
        [sampling.temperature, sampling.top_p, sampling.max_tokens, sampling.seed, sampling.effort],
        [tree_digest(chat_date.__file__), os.environ.get("CHAT_DATE") or chat_date.DEFAULT],
        [
            tree_digest(__file__),
            tree_digest(verdicts.__file__),
            tree_digest_of_sources(Path(rft.grading.__file__).parent),
        ],
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def tree_digest_of_sources(directory: Path) -> str:
    """Hash of a package's Python files, without the bytecode beside them."""
    return hashlib.sha256("".join(tree_digest(p) for p in sorted(directory.rglob("*.py"))).encode()).hexdigest()


def problem_key(row: dict) -> str:
    """Content hash of a prompt and its label, of tests with their judge: others make other verdicts."""
    parts = [row["input"], row["label"], *([code_grader()] if is_code_label(row["label"]) else [])]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@contextmanager
def locked(cache: Path) -> Iterator:
    """The cache, open to append, for this process alone; an incomplete last line, left by a kill, is cut off first.

    Raises:
        ValueError: another process has it, or the file is something else than a cache. It has not changed then.
    """
    cache.parent.mkdir(parents=True, exist_ok=True)
    with cache.open("a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"found {cache} in use by another process, wanted no other user of it; wait, or pass another --cache"
            ) from None
        lock.seek(0)
        require_cache(cache, lock.readline())
        lock.seek(0)
        lock.truncate(lock.read().rfind(b"\n") + 1)
        with cache.open("a", encoding="utf-8") as stream:
            yield stream
            os.fsync(stream.fileno())


def require_cache(cache: Path, first: bytes) -> None:
    """Raise ValueError unless the first line is a sample, or the beginning of one, or there is none."""
    if first.endswith(b"\n"):
        try:
            known = {"run", "problem", "index"} <= set(parse_line(first))
        except ValueError:
            known = False
    else:
        known = first.startswith(FIRST) or FIRST.startswith(first)
    if not known:
        raise ValueError(
            f"found {cache}, whose first line is no sample, wanted a cache that this command made; "
            "pass --cache with a new name"
        )


def sample(model: str, missing: list[tuple[dict, str, int]], sampling: Sampling) -> Iterator[dict]:
    """One record a sample: `problem`, `index`, `correct`, `truncated`, `tokens`; in order, chunk by chunk.

    Prompts are rendered and tokenised as OpenRLHF's single-turn executor does it. Each sample has its own seed, from
    the problem and the index, whatever else is missing. Raises ValueError for a prompt above the limit, before any
    sample is drawn, and where the code server gives no verdict on a chunk.
    """
    from vllm import SamplingParams

    from rft.serving.engine import open_engine

    llm = open_engine(model, sampling.max_prompt_tokens + sampling.max_tokens)
    tokenizer = llm.get_tokenizer()
    options = chat_date.dated() | reasoning_effort.chosen(tokenizer, sampling.effort)
    prompts = {key: render(row, tokenizer, sampling.max_prompt_tokens, options) for row, key, _ in missing}
    step = CHUNK * sampling.n
    for start in range(0, len(missing), step):
        chunk = missing[start : start + step]
        params = [
            SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_tokens,
                seed=sample_seed(sampling.seed, key, index),
                skip_special_tokens=False,
            )
            for _, key, index in chunk
        ]
        requests = [{"prompt_token_ids": prompts[key][1]} for _, key, _ in chunk]
        outputs = [request.outputs[0] for request in llm.generate(requests, params, use_tqdm=True)]
        texts = [tokenizer.decode(output.token_ids, skip_special_tokens=False) for output in outputs]
        responses = [
            Response(text, prompts[key][0], row["label"]) for (row, key, _), text in zip(chunk, texts, strict=True)
        ]
        for (_, key, index), output, correct in zip(chunk, outputs, are_correct(responses), strict=True):
            yield {
                "problem": key,
                "index": index,
                "correct": correct,
                "truncated": output.finish_reason == "length",
                "tokens": len(output.token_ids),
            }


def render(row: dict, tokenizer: "PreTrainedTokenizerBase", limit: int, options: dict) -> tuple[str, list[int]]:
    """A row's prompt as text and as tokens, with the template's `options`."""
    messages = [{"role": "user", "content": row["input"]}] if isinstance(row["input"], str) else row["input"]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
    tokens = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    if len(tokens) > limit:
        raise ValueError(
            f"problem {row['id']!r}: found a prompt of {len(tokens)} tokens, wanted at most {limit}; "
            f"pass --max-prompt-tokens {len(tokens)}, or remove the problem"
        )
    return prompt, tokens


def sample_seed(seed: int, key: str, index: int) -> int:
    """Seed of one sample, 32 bits."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{key}:{index}".encode()).digest()[:4], "big")
