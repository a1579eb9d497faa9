"""Rules about the evaluations in the loop: does the gain in training hold on problems that the policy never saw?"""

from rft.record.eval_names import probe_metric, problems_metric
from rft.rules.verdict import Verdict, column, graded, mean, share_error, trend

# In standard errors of one evaluation. Paired on the same problems, a difference of two has about one.
NOISE, NOISE_OF_THE_BEST = 2.0, 3.0  # the best of many is flattered by chance


def probe(evaluations: list[dict]) -> tuple[str, list[int], list[float], float | None] | None:
    """(metric, steps, values, number of problems if the run wrote it) of the probe that checkpoints are chosen by."""
    name = probe_metric(evaluations)
    if name is None:
        return None
    rows = [record for record in evaluations if record.get(name) is not None]
    problems = rows[-1].get(problems_metric(name))
    return name, [r["global_step"] for r in rows], [r[name] for r in rows], problems


def noise(value: float, problems: float | None, errors: float = NOISE) -> float:
    """What a difference must exceed; 0 where the number of problems is unknown, so that the plain rule holds."""
    return errors * share_error(value, problems) if problems else 0.0


def ood_decline(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """The OOD probe fell in two consecutive evaluations (docs/sources.md): `bad` where that is more than noise.

    Three values fall in a row by pure chance in one case of six, which over a run is nearly sure to happen. More than
    noise is a fall over the two, or from the best so far, that exceeds what problems of this number can say.
    """
    found = probe(evaluations)
    if not found or len(found[2]) < 3:
        return None
    name, steps, values, problems = found
    a, b, c = values[-3:]
    best = max(range(len(values)), key=values.__getitem__)
    falling, fall, below = a > b > c, a - c, values[best] - c
    allowed, allowed_below = noise(a, problems), noise(values[best], problems, NOISE_OF_THE_BEST)
    meant = fall > allowed or below > allowed_below
    reason = f"{name} {a:.3f} -> {b:.3f} -> {c:.3f} (steps {steps[-3]}, {steps[-2]}, {steps[-1]})"
    if falling and not meant:
        reason += f": down twice, within the noise of {problems:.0f} problems"
    numbers = {
        "metric": name, "steps": steps[-3:], "values": [a, b, c], "fall": fall, "noise": allowed,
        "best_step": steps[best], "below_best": below, "noise_of_the_best": allowed_below,
    }  # fmt: skip
    change = f"stop; the best checkpoint is that of step {steps[best]} ({values[best]:.3f}), see best.json"
    return graded(falling and meant, falling, reason, numbers, change)


def divergence(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """Training correctness rises while the probe is flat or falls: overfitting, or a reward that is gamed."""
    found = probe(evaluations)
    name = "correctness" if column(training, "correctness") else "reward_mean"
    learned = trend(training, name, max(5, len(training) // 4))
    if not found or len(found[2]) < 2 or not learned:
        return None
    metric, _, values, problems = found
    rise, gain, allowed = learned[1] - learned[0], values[-1] - values[0], noise(values[0], problems)
    rising = rise > 2 * learned[2]
    reason = f"{name} {learned[0]:.3f} -> {learned[1]:.3f}, {metric} {values[0]:.3f} -> {values[-1]:.3f}"
    numbers = {name: learned[:2], "metric": metric, "first": values[0], "last": values[-1], "noise": allowed}
    change = "stop and take the best checkpoint (best.json); more and broader problems, or a smaller learning rate"
    fell = max(values) - values[-1] > allowed and gain <= allowed
    still = len(values) > 2 and gain <= 0
    return graded(rising and gain < -allowed, rising and (fell or still), reason, numbers, change)


def below_base(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """The policy answers fewer held-out problems than the base model did, at step 0."""
    found = probe(evaluations)
    if not found or found[1][0] != 0 or len(found[2]) < 2:
        return None
    name, steps, values, problems = found
    lost, allowed = values[0] - values[-1], noise(values[0], problems)
    reason = f"{name} {values[0]:.3f} before training, {values[-1]:.3f} at step {steps[-1]}"
    numbers = {"metric": name, "base": values[0], "last": values[-1], "mean": mean(values[1:]), "noise": allowed}
    change = "take an earlier checkpoint (best.json); lower the learning rate, raise --init_kl_coef"
    return graded(lost > allowed, lost > allowed / 2, reason, numbers, change)
