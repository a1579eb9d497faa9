"""Rules about an agent's conversations: whether its turns do something, and whether it still searches."""

from rft.rules.healthy import HEALTHY
from rft.rules.learning import SUSTAINED
from rft.rules.verdict import Verdict, column, graded, mean, trend


def actions(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """Turns that neither search nor answer: above a tenth the protocol is not followed, above one half it is lost."""
    values = column(training, "invalid_action_share")
    if not values:
        return None
    last = values[-SUSTAINED:]
    reason = f"{mean(last):.0%} of the turns of the last {len(last)} steps neither search nor answer"
    change = (
        "read such samples (rft.runs.samples RUN --step last): are turns cut (RFT_AGENT_TURN_TOKENS), is the protocol "
        "that of the prompts (RFT_AGENT_PROTOCOL)?"
    )
    bad = len(last) == SUSTAINED and min(last) > 0.5
    return graded(bad, mean(last) > HEALTHY["invalid_action_share"].high, reason, {"last": last}, change)


def searching(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """The policy searches less than half as often as at first, and is not right more often for it."""
    found, right = trend(training, "searches", SUSTAINED), trend(training, "correctness", SUSTAINED)
    if not found or not found[0]:
        return None
    first, last, _ = found
    better = right is not None and right[1] - right[0] > right[2]
    reason = f"{first:.2f} -> {last:.2f} searches a conversation" + (", while correctness rises" if better else "")
    numbers = {"first": first, "last": last}
    change = "compare correctness_searches_0 with the others: are questions in the data that need no search?"
    return graded(False, last < 0.5 * first and not better, reason, numbers, change)
