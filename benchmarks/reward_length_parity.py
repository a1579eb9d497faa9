"""Reward for random models with gpt-oss's own vocabulary: 1.0 where the response has an even number of characters.

About half of the samples of any policy are rewarded, so that nearly every group has both kinds and a gradient.
"""

import torch


def reward_func(queries: list[str], prompts: list[str], labels: list[str], **kwargs: object) -> dict:
    """`rewards`, `scores` and `extra_logs` (characters of the response), float32 `(n,)`."""
    lengths = [len(query) - len(prompt) for query, prompt in zip(queries, prompts, strict=True)]
    rewards = torch.tensor([float(length % 2 == 0) for length in lengths], dtype=torch.float32)
    characters = torch.tensor(lengths, dtype=torch.float32)
    return {"rewards": rewards, "scores": rewards.clone(), "extra_logs": {"characters": characters}}
