"""What a run's numbers say about it: every rule of the diagnosis and of early stopping, over plain records.

Sources: the smoke test, the tuning playbook and the metrics' tiers of the first recipe (docs/sources.md), and what
the sync's receipts and canary allow on top. A rule is a pure function; docs/diagnosis.md lists all of them. Standard
library only, for the training process judges with it after every step, and `rft.runs.diagnose` afterwards.
"""

from collections.abc import Callable
from typing import NamedTuple

from rft.rules import agent, evaluation, learning, stability
from rft.rules.verdict import LEVELS, Verdict, last_of_each_step


class Rule(NamedTuple):
    """A check, and whether it may stop a training by default.

    `check(training, evaluations, facts)` returns a verdict, or None where the run has not measured what it needs.
    """

    check: Callable[[list[dict], list[dict], dict], Verdict | None]
    stops: bool = False


# In the order of the report. Only rules whose `bad` no run that learns has ever shown stop one by default.
RULES = {
    "not_finite": Rule(stability.not_finite, stops=True),
    "frozen_weights": Rule(stability.frozen_weights, stops=True),
    "dropped_sync": Rule(stability.dropped_sync, stops=True),
    "zero_reward": Rule(learning.zero_reward, stops=True),
    "full_reward": Rule(learning.full_reward, stops=True),
    "no_signal": Rule(learning.no_signal, stops=True),
    "gradient": Rule(stability.gradient, stops=True),
    "mismatch": Rule(stability.mismatch, stops=True),
    "ood_decline": Rule(evaluation.ood_decline, stops=True),
    "disk": Rule(stability.disk, stops=True),
    "mismatch_level": Rule(stability.mismatch_level),
    "advantage": Rule(learning.advantage),
    "clipping": Rule(stability.clipping),
    "ratio_tails": Rule(stability.ratio_tails),
    "spikes": Rule(stability.spikes),
    "instability": Rule(stability.instability),
    "entropy": Rule(stability.entropy),
    "rounding": Rule(stability.rounding),
    "format": Rule(learning.answer_format),
    "truncation": Rule(learning.truncation),
    "length_collapse": Rule(learning.length_collapse),
    "reward_hacking": Rule(learning.reward_hacking),
    "grader": Rule(learning.grader),
    "actions": Rule(agent.actions),
    "searching": Rule(agent.searching),
    "flat": Rule(learning.flat),
    "divergence": Rule(evaluation.divergence),
    "below_base": Rule(evaluation.below_base),
}


def judge(training: list[dict], evaluations: list[dict], facts: dict | None = None) -> list[Verdict]:
    """The verdict of every rule that has what it needs, in the order of `RULES`.

    Args:
        training: records of `training_metrics.jsonl` in order; several of one step count as the last one.
        evaluations: records of `eval_metrics.jsonl`; those of steps that a resume took back are left out.
        facts: what is no metric: `disk`, a list of {"path", "free", "need"} in bytes.
    """
    training = last_of_each_step(training)
    last = training[-1]["global_step"] if training else 0
    evaluations = [record for record in last_of_each_step(evaluations) if record["global_step"] <= last]
    verdicts = []
    for name, rule in RULES.items():
        verdict = rule.check(training, evaluations, facts or {})
        if verdict:
            verdicts.append(verdict._replace(rule=name))
    return verdicts


def findings(verdicts: list[Verdict]) -> list[Verdict]:
    """The verdicts that are not ok, the worst first."""
    return sorted((v for v in verdicts if v.level != "ok"), key=lambda v: -LEVELS.index(v.level))


def chosen(words: str) -> set[str]:
    """The rules that `--stop_rules` names: `off`, `default`, `all`, names, and `-name` to take one away, in order.

    Where the first word takes a rule away, it is taken from the default.

    Raises:
        ValueError: an unknown name.
    """
    groups = {"off": set(), "default": {name for name, rule in RULES.items() if rule.stops}, "all": set(RULES)}
    rules = set(groups["default"]) if words.strip().startswith("-") else set()
    for word in (part.strip() for part in words.split(",")):
        name = word.removeprefix("-")
        if name not in RULES and word not in groups:
            raise ValueError(
                f"--stop_rules: found {word!r}, wanted off, default, all, or rules by name ({', '.join(RULES)}), each "
                "with a - in front to take it away, separated by commas"
            )
        if word in groups:
            rules = set(groups[word])
        elif word.startswith("-"):
            rules.discard(name)
        else:
            rules.add(name)
    return rules
