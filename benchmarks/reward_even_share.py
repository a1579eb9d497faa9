"""Reward that random models can learn: the share of even token ids in the response, from 0 to 1, 0.5 for no policy.

Every token counts, so that a policy gradient has something to climb from the first step. As
`benchmarks.reward_token_parity` for checkpoints of `benchmarks.checkpoint`.
"""

from benchmarks.reward_token_parity import reward_func as parity


def reward_func(queries: list[str], prompts: list[str], labels: list[str], **kwargs: object) -> dict:
    """`rewards` and `scores`, float32 `(n,)`. Raises ValueError where a query has no response behind its prompt."""
    shares = parity(queries, prompts, labels)["extra_logs"]["even_share"]
    return {"rewards": shares, "scores": shares.clone(), "extra_logs": {}}
