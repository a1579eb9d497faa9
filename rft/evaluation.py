"""Evaluate a policy on a problem file: the mode and the dataset are part of every number."""

import hashlib
import json
from pathlib import Path

from rft.grading import grade, open_channel
from rft.stats import wilson_interval

MODES = {"greedy_pass@1": {"temperature": 0.0, "n": 1}}


def read_problems(path: str | Path) -> list[dict]:
    """Problems of a JSONL file: each with `input` (chat messages), `label` (string) and `id`.

    Raises:
        ValueError: file, line and field of the first thing that is missing or of the wrong kind.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"found no file {path}; wanted a JSONL of problems (input, label, id)")
    text, problems = path.read_text(encoding="utf-8"), []
    if not text.strip():
        raise ValueError(f"{path}: no problems in the file")
    # Not splitlines: a JSON string may hold U+2028 and its kin, as scraped mathematics does.
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        try:
            problem = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error.msg})") from None
        for field, kind in (("input", list), ("label", str), ("id", str)):
            found = problem.get(field) if isinstance(problem, dict) else problem
            if not isinstance(problem, dict) or not isinstance(found, kind):
                raise ValueError(f"{path}, line {number}: field {field!r} is {found!r}, wanted a {kind.__name__}")
        problems.append(problem)
    return problems


def generate(llm, problems: list[dict], mode: str, max_tokens: int) -> list[dict]:
    """One graded record per problem: `id`, `label`, `response`, `answer`, `correct`, `truncated`, `tokens`.

    Prompts are rendered and tokenised as OpenRLHF's single-turn executor does it, so that training and evaluation
    see the same tokens.
    """
    from vllm import SamplingParams

    tokenizer = llm.get_tokenizer()
    prompts = [tokenizer.apply_chat_template(p["input"], tokenize=False, add_generation_prompt=True) for p in problems]
    tokens = [{"prompt_token_ids": tokenizer(p, add_special_tokens=False)["input_ids"]} for p in prompts]
    params = SamplingParams(max_tokens=max_tokens, skip_special_tokens=False, **MODES[mode])
    records = []
    for problem, prompt, output in zip(problems, prompts, llm.generate(tokens, params, use_tqdm=True), strict=True):
        completion = output.outputs[0]
        response = tokenizer.decode(completion.token_ids, skip_special_tokens=False)
        verdict = grade(response, problem["label"], open_channel(prompt))
        records.append(
            {
                "id": problem["id"],
                "label": problem["label"],
                "response": response,
                "answer": verdict.answer,
                "correct": verdict.correct,
                "truncated": completion.finish_reason == "length",
                "tokens": len(completion.token_ids),
            }
        )
    return records


def summarize(records: list[dict], mode: str) -> dict:
    """The accuracy under its mode's name, with n and a 95% Wilson interval, and the response's shape."""
    n, hits = len(records), sum(r["correct"] for r in records)
    low, high = wilson_interval(hits, n)
    return {
        mode: hits / n,
        "n": n,
        "interval95": [low, high],
        "truncated": sum(r["truncated"] for r in records) / n,
        "mean_tokens": sum(r["tokens"] for r in records) / n,
    }


def tree_digest(path: str | Path) -> str:
    """sha256 over names and contents of a directory's files (or of one file): the identity of a checkpoint."""
    path, digest = Path(path), hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        digest.update(f"{file.relative_to(path) if path.is_dir() else file.name}\0".encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
