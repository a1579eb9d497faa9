"""Is the server the policy that was trained? A question of the run, and log-probabilities against the PEFT model."""

from typing import TYPE_CHECKING

import requests
import torch

from rft.evals import probe
from rft.evals.prompts import Prompt, load_tokenizer, render
from rft.problems import read_problems

if TYPE_CHECKING:
    from rft.serve.served_run import ServedRun

QUESTIONS = probe.PROMPTS


class Server:
    """A vLLM server's completions endpoint; what stands in HTTP_PROXY is not asked.

    Args:
        url: of the server, without a path.
        model: the name under which it serves.
        key: VLLM_API_KEY, or None.
    """

    def __init__(self, url: str, model: str, key: str | None = None) -> None:
        self.url, self.model, self.session = url, model, requests.Session()
        self.session.trust_env = False
        if key:
            self.session.headers["Authorization"] = f"Bearer {key}"

    def is_up(self) -> bool:
        """Whether it answers."""
        try:
            return self.session.get(f"{self.url}/health", timeout=5).ok
        except requests.RequestException:
            return False

    def complete(self, tokens: list[int], limit: int, **options: object) -> dict:
        """The greedy completion of a prompt's tokens; see vLLM's `/v1/completions`. Raises requests' errors."""
        request = {"model": self.model, "prompt": tokens, "max_tokens": limit, "temperature": 0, "stream": False}
        options = {"skip_special_tokens": False, "return_token_ids": True, **options}
        answer = self.session.post(f"{self.url}/v1/completions", json=request | options, timeout=600)
        answer.raise_for_status()
        return answer.json()["choices"][0]

    def log_probs(self, sequences: list[tuple[list[int], int]]) -> torch.Tensor:
        """As `rft.evals.probe.engine_log_probs`: of the tokens behind each prompt, shape (tokens,), float64."""
        values = []
        for tokens, start in sequences:
            found = self.complete(tokens, 1, prompt_logprobs=0)["prompt_logprobs"]
            values += [found[i][str(tokens[i])]["logprob"] for i in range(start, len(tokens))]
        return torch.tensor(values, dtype=torch.float64)


def questions(served: "ServedRun") -> list[tuple[dict, Prompt]]:
    """The first problems that the run evaluated in its loop, rendered as there. Raises ValueError without any."""
    file = (served.options.eval_dataset or "").split(",")[0].strip()
    if not file.endswith(".jsonl"):
        raise ValueError(
            f"found no problems to ask in {file or 'an empty --eval_dataset'}; wanted the run's JSON lines"
        )
    problems = read_problems(file)[:QUESTIONS]
    effort = getattr(served.options, "reasoning_effort", None)
    return list(zip(problems, render(load_tokenizer(served.base), problems, None, effort), strict=True))


def compare(server: Server, served: "ServedRun", prompts: list[Prompt], device: str) -> dict:
    """Log-probabilities of the server's own greedy tokens against those of the PEFT model, as training loads it.

    Returns:
        `tokens`; `mismatch` and `base_mismatch`, mean |Δ| in nats of the PEFT model and of the base; `effect`, mean
        |Δ| between these two.

    Raises:
        ValueError: the server serves the base model, or another adapter.
    """
    sequences = []
    for prompt in prompts:
        tokens = prompt.tokens[-probe.PROMPT_TOKENS :]
        sequences.append((tokens + server.complete(tokens, probe.CONTINUATION)["token_ids"], len(tokens)))
    found = server.log_probs(sequences)
    model = probe.load_reference(served.base, device)
    base = probe.reference_log_probs(model, sequences)
    wanted = probe.adapter_log_probs(model, served.adapter, sequences)
    return judged(found, base, wanted)


def judged(found: torch.Tensor, base: torch.Tensor, wanted: torch.Tensor) -> dict:
    """The numbers of `compare` from the server's, the base's and the adapter's log-probabilities, each (tokens,)."""
    pairs = {"mismatch": (found, wanted), "base_mismatch": (found, base), "effect": (wanted, base)}
    record = {name: (a - b).abs().mean().item() for name, (a, b) in pairs.items()}
    if record["effect"] > probe.AUDIBLE * max(record["base_mismatch"], 1e-4):
        raise ValueError(
            f"the server answers as the base model ({record['base_mismatch']:.4f} nats a token from it, the adapter is "
            f"{record['effect']:.4f} away); wanted the adapter; check the patches: bash apply_patches.sh verify"
        )
    bound = max(probe.AGREEMENT, probe.FLIPS * record["effect"])
    if record["mismatch"] > bound:
        raise ValueError(
            f"server and trained model differ by {record['mismatch']:.3f} nats a token, wanted at most {bound:.3f}; "
            "check the patches: bash apply_patches.sh verify"
        )
    return {"tokens": len(found), **record}
