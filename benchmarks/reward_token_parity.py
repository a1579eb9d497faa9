"""Reward for random models: 1.0 when the last token id of the response is even, else 0.0.

About half of the samples of any policy that knows nothing are rewarded, so that nearly every group has both kinds and
a gradient. Meant for checkpoints of `benchmarks.checkpoint`, whose decoded text names token ids.
"""

import torch


def reward_func(queries: list[str], prompts: list[str], labels: list[str], **kwargs: object) -> dict:
    """`rewards`, `scores` and `extra_logs` (share of even ids in the response), float32 `(n,)`, all finite.

    Raises ValueError where a query has no response behind its prompt.
    """
    rewards, even_shares = [], []
    for query, prompt in zip(queries, prompts, strict=True):
        if not query.startswith(prompt) or not query[len(prompt) :].split():
            raise ValueError(f"wanted the prompt and a response of words like t17, found {query[-80:]!r}")
        ids = [int(word.removeprefix("t")) for word in query[len(prompt) :].split()]
        rewards.append(float(ids[-1] % 2 == 0))
        even_shares.append(sum(i % 2 == 0 for i in ids) / len(ids))
    rewards = torch.tensor(rewards, dtype=torch.float32)
    return {
        "rewards": rewards,
        "scores": rewards.clone(),
        "extra_logs": {"even_share": torch.tensor(even_shares, dtype=torch.float32)},
    }
