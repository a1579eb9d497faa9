"""`--mask_truncated`: answers that were cut at the length limit are taken out of the loss."""

from argparse import Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openrlhf.trainer.ppo_utils.experience_maker import Experience


def mask(experiences: list["Experience"]) -> list["Experience"]:
    """The experiences with an `action_mask` of 0 for every token of a cut answer, so that no mean and no sum over
    action tokens knows of it: policy loss, KL, entropy, their divisors and metrics.

    Call it when the advantages are there. A group's mean and std include the rewards of its cut answers: DAPO's
    overlong filtering masks the loss only (arXiv 2503.14476, section 3.4), and a mean over the rest would flatter them.

    Args:
        experiences: with `action_mask` (batch, actions), integers or bool, and `info["truncated"]` (batch,), not 0
            where the engine stopped at the limit. Their masks are replaced, not changed: a rollout's samples may share
            them.
    """
    for experience in experiences:
        cut = experience.info["truncated"].bool()
        experience.action_mask = experience.action_mask.masked_fill(cut[:, None], 0)
    return experiences


def said(response: dict, args: Namespace) -> bool:
    """Whether a sample was cut at the length limit, as the executor that made it says.

    Args:
        response: what `AgentExecutorBase.execute` returned; `truncated` where it knows.
        args: `mask_truncated`, `agent_func_path`.

    Raises:
        ValueError: the sample does not say it, and those that were cut shall be masked.
    """
    if "truncated" not in response and args.mask_truncated:
        raise ValueError(
            f"--mask_truncated: a sample of --agent_func_path {args.agent_func_path} does not say whether it was cut\n"
            f"  found:  {', '.join(sorted(response))}\n  wanted: truncated, True or False, beside them\n"
            "  repair: let execute() return it, or leave --mask_truncated out"
        )
    return bool(response.get("truncated", False))
