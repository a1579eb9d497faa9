"""Exact-match reward for OpenRLHF 0.9.3: ``--remote_rm_url rewards/reward_func_em.py``. 1.0 or 0.0, no judge."""

import torch

from rft.grading import grade, open_channel, response_of


def reward_func(queries: list[str], prompts: list[str], labels: list[str], **kwargs) -> dict:
    """Score each response against its label.

    OpenRLHF calls this in a thread with lists of one: a query is the decoded prompt and response, special tokens
    kept (openrlhf/utils/agent.py, SingleTurnAgentExecutor). Only the response is graded. Returns ``rewards`` and
    ``scores``, float32 ``(n,)`` of 0 and 1, and ``extra_logs``, a dict of finite float32 ``(n,)`` (reference
    section 10). A label that cannot be parsed counts in ``label_invalid`` and rewards its whole group 0, so that
    its group-relative advantage is 0. Raises ValueError where a query does not begin with its prompt.
    """
    grades = [
        grade(response_of(query, prompt), _text(label), open_channel(prompt))
        for query, prompt, label in zip(queries, prompts, labels, strict=True)
    ]
    rewards = _floats(g.correct for g in grades)
    return {
        "rewards": rewards,
        "scores": rewards.clone(),
        "extra_logs": {
            "correctness": rewards.clone(),
            "correctness_lenient": _floats(g.correct_lenient for g in grades),
            "has_answer": _floats(g.answer is not None for g in grades),
            "has_boxed": _floats(g.has_boxed for g in grades),
            "parse_method": _floats(g.method for g in grades),
            "boxed_in_final": _floats(g.boxed_in_final for g in grades),
            "truncated_response": _floats(g.truncated for g in grades),
            "label_invalid": _floats(not g.label_valid for g in grades),
        },
    }


def _text(label) -> str | None:
    """A label as text: datasets may hold it as a number."""
    return None if label is None else str(label)


def _floats(values) -> torch.Tensor:
    return torch.tensor([float(v) for v in values], dtype=torch.float32)
