"""Exact-match reward for OpenRLHF 0.9.3: ``--remote_rm_url rewards/reward_func_em.py``. 1.0 or 0.0, no judge."""

import torch

from rft.grading import grade, open_channel, response_of

EXCLUDED_SCORE = -1.0  # outside of 0 to 1, so that dynamic filtering drops the group whatever its range


def reward_func(queries: list[str], prompts: list[str], labels: list, **kwargs: object) -> dict:
    """Score each response against its label.

    OpenRLHF calls this in a thread with lists of one: a query is the decoded prompt and response, special tokens
    kept (openrlhf/utils/agent.py, SingleTurnAgentExecutor). Only the response is graded. Returns ``rewards`` and
    ``scores``, float32 ``(n,)``, and ``extra_logs``, a dict of finite float32 ``(n,)``.
    Raises ValueError where a query does not begin with its prompt.

    A label that cannot be parsed is excluded, not graded: ``label_invalid`` counts it, its reward is the same for every
    response, so that a group's advantages are exactly 0, and its score is `EXCLUDED_SCORE`, so that
    ``--dynamic_filtering`` replaces the group. The trainer takes finite rewards only, so there is no third value;
    docs/grading.md says how to read the means of a step with such labels.
    """
    grades = [
        grade(response_of(query, prompt), label_text(label), open_channel(prompt))
        for query, prompt, label in zip(queries, prompts, labels, strict=True)
    ]
    rewards = _floats(g.correct for g in grades)
    return {
        "rewards": rewards,
        "scores": _floats(g.correct if g.label_valid else EXCLUDED_SCORE for g in grades),
        "extra_logs": {
            "correctness": rewards.clone(),
            "correctness_lenient": _floats(g.correct_lenient for g in grades),
            "lenient_disagreement": _floats(g.correct_lenient != g.correct for g in grades),
            "has_answer": _floats(g.answer is not None for g in grades),
            "has_boxed": _floats(g.has_boxed for g in grades),
            "parse_method": _floats(g.method for g in grades),
            "boxed_in_final": _floats(g.boxed_in_final for g in grades),
            "truncated_response": _floats(g.truncated for g in grades),
            "label_invalid": _floats(not g.label_valid for g in grades),
        },
    }


def label_text(label: object) -> str | None:
    """A label as text: data sets may hold it as a number. A whole float reads as its integer, None stays None."""
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    return None if label is None else str(label)


def _floats(values) -> torch.Tensor:
    return torch.tensor([float(v) for v in values], dtype=torch.float32)
