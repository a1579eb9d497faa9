"""How far bf16 may lead a trained tiny model astray, on any machine: a float32 copy of the same weights decides.

At each token of given completions float32 has a lead: its best logit less its second. The same weights in bf16 have
another lead there, and the distance of the two is what rounding does in this model. So a lead beyond twice the largest
distance is decided, whatever machine computes it, and of the others only as many may turn as such distances can turn.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoTokenizer

from rft.evals.prompts import digest
from rft.hooks import rotary
from rft.hooks.saved_adapter import base_model_of
from rft.record.samples import EVALUATION, read_samples, sample_file
from rft.tiny.checkpoint import load_dequantized


@dataclass
class Truth:
    """What float32 says of the tokens of some completions, in order; every tensor has shape (tokens,)."""

    best: torch.Tensor  # its own choice, int64
    lead: torch.Tensor  # of that choice over the second, float64, nats
    lead_error: torch.Tensor  # of bf16, float64, nats, as a distance
    log_prob: torch.Tensor  # of the completion's token, float64, nats
    log_prob_error: torch.Tensor  # of bf16, float64, nats, as a distance

    def decided(self) -> torch.Tensor:
        """Where every bf16 computation chooses as float32 does."""
        return self.lead > 2 * self.lead_error.max()

    def most_turned(self) -> float:
        """How many choices another bf16 computation may turn: the expected number, and six standard deviations.

        Expected at a token is the share of all errors that reach its lead. Half of them widen it: this is generous.
        """
        short = torch.searchsorted(self.lead_error.sort().values, self.lead)
        expected = (1 - short.double() / len(self.lead)).sum().item()
        return expected + 6 * max(expected, 1) ** 0.5

    def farthest(self) -> float:
        """The largest mean error of log-probabilities, nats, of another bf16 computation with roundings of its own."""
        return farthest(self.log_prob_error)


def farthest(error: torch.Tensor) -> float:
    """The same of one bf16 computation's errors, shape (tokens,)."""
    return (2 * error.mean() + 6 * error.std() / len(error) ** 0.5).item()


def load(adapter: Path, dtype: torch.dtype) -> PeftModel:
    """The tiny base model of a saved adapter with the adapter on it, all in `dtype`."""
    base = load_dequantized(Path(base_model_of(adapter)), dtype)
    return rotary.cast(PeftModel.from_pretrained(base, str(adapter)), dtype).eval()


def logits(model, prompt: list[int], completion: list[int]) -> torch.Tensor:
    """Those that chose each token of the completion, shape (completion tokens, vocabulary), float64."""
    with torch.no_grad():
        return model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].double()


def chosen(logits: torch.Tensor, completion: list[int]) -> torch.Tensor:
    """Log-probability of each token of the completion, shape (completion tokens,)."""
    return logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]


def truth(adapter: Path, samples: list[tuple[list[int], list[int]]]) -> Truth:
    """Compute the (prompt, completion) pairs in float32 and in bf16."""
    exact, rounded = load(adapter, torch.float32), load(adapter, torch.bfloat16)
    found = []
    for prompt, completion in samples:
        wanted, seen = logits(exact, prompt, completion), logits(rounded, prompt, completion)
        first, second = wanted.topk(2).indices.T[..., None]
        lead, lead_seen = ((z.gather(1, first) - z.gather(1, second))[:, 0] for z in (wanted, seen))
        log_prob, log_prob_seen = chosen(wanted, completion), chosen(seen, completion)
        errors = (lead_seen - lead).abs(), (log_prob_seen - log_prob).abs()
        found.append((first[:, 0], lead, errors[0], log_prob, errors[1]))
    return Truth(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def assert_only_rounding_parts_evaluations(run_dir: Path, step: int) -> None:
    """Compare the greedy samples of the loop's evaluation at `step`, the last, with those of the saved adapter.

    The weights are the same. So two samples may part only at a token that float32 leaves open, and seldom.
    """
    adapter = run_dir / "adapter"
    tokenizer = AutoTokenizer.from_pretrained(base_model_of(adapter))
    tokens = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    (after,) = json.loads((run_dir / "evals" / "after.json").read_text())
    later = {record["prompt"]: record["response"] for record in after["records"]}
    rows = list(read_samples(sample_file(run_dir / "samples", EVALUATION, step)))
    pairs = [(tokens(row["prompt"]), tokens(row["response"]), tokens(later[digest(row["prompt"])])) for row in rows]
    known = truth(adapter, [(prompt, first) for prompt, first, _ in pairs])
    decided = known.decided().split([len(first) for _, first, _ in pairs])
    parted = [(pair[1:], fixed) for pair, fixed in zip(pairs, decided, strict=True) if pair[1] != pair[2]]
    for (first, second), fixed in parted:
        place = next(n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
        assert not fixed[place], f"token {place}: {tokenizer.decode(first)!r}, {tokenizer.decode(second)!r}"
    assert len(parted) <= known.most_turned()
