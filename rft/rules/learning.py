"""Rules about reward, format, length and progress: signal and collapse, and the playbook (docs/sources.md)."""

from collections.abc import Callable
from itertools import takewhile

from rft.rules.healthy import HEALTHY
from rft.rules.verdict import Verdict, column, graded, latest, mean, trend

SMOKE = 5  # steps; the smoke-test table asks for a verdict within about six
SUSTAINED = 3
GROUPS = 200  # in a row without signal, before a run is judged by it: docs/diagnosis.md has the calculation
SPARSE = 0.05  # solve rate below which the reward is too sparse: docs/sources.md
FLAT_STEPS = 20


def zero_reward(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """No sample is right, from the start or for long: broken data, labels or reward, or problems far too hard."""
    largest = latest(training, "reward_max", SMOKE) or latest(training, "reward_mean", SMOKE)
    means = latest(training, "reward_mean", SMOKE) or latest(training, "reward", SMOKE)
    if not largest or not means:
        return None
    bad = _in_a_row(training, lambda r: _one_reward(r) and r["reward_max"] <= 0)
    reason = f"largest reward of the last {SMOKE} steps {max(largest):.3g}, mean {mean(means):.3g}"
    change = (
        "read a few samples (samples/, rft.runs.report): is the label right, the answer extracted, the response cut? "
        "If all is right: easier problems first (data/make_curriculum.py), more --n_samples_per_prompt"
    )
    return graded(bad, mean(means) < SPARSE, reason, {"reward_max": largest, "reward_mean": means}, change)


def full_reward(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """Every sample is right, from the start or for long: problems too easy, or a reward that always says yes."""
    smallest = latest(training, "reward_min", SMOKE) or latest(training, "reward_mean", SMOKE)
    means = latest(training, "reward_mean", SMOKE) or latest(training, "reward", SMOKE)
    if not smallest or not means:
        return None
    reason = f"smallest reward of the last {SMOKE} steps {min(smallest):.3g}, mean {mean(means):.3g}"
    high = mean(means) > HEALTHY["correctness"].high
    change = "harder problems (data/make_curriculum.py), or fix a reward function that accepts everything"
    bad = _in_a_row(training, lambda r: _one_reward(r) and r["reward_min"] >= 1)
    return graded(bad, high, reason, {"reward_min": smallest, "reward_mean": means}, change)


def no_signal(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """Groups whose rewards are all equal have no advantage; above 70% most of the rollouts are wasted."""
    shares = latest(training, "group_zero_variance_share", SMOKE)
    if not shares:
        return None
    groups = _groups(_last(training, lambda r: r.get("group_zero_variance_share") == 1))
    reason = f"{mean(shares):.0%} of the groups of the last {SMOKE} steps have one reward, the last {groups:.0f} all"
    change = (
        "choose problems of medium pass rate (data/make_curriculum.py), raise --n_samples_per_prompt (8 -> 16), or "
        "--dynamic_filtering"
    )
    return graded(groups >= GROUPS, mean(shares) > 0.7, reason, {"last": shares, "groups_in_a_row": groups}, change)


def _one_reward(record: dict) -> bool:
    """Whether a step does not tell its samples apart: rewards below 0 or above 1 may, and teach then."""
    return record.get("reward_min") is not None and record["reward_min"] == record.get("reward_max")


def _in_a_row(training: list[dict], hopeless: Callable[[dict], bool]) -> bool:
    """Whether all steps have been hopeless, five at least, or the last `GROUPS` groups were: a sparse reward pauses."""
    last = _last(training, hopeless)
    return len(last) >= SMOKE and (len(last) == len(training) or _groups(last) >= GROUPS)


def _last(training: list[dict], condition: Callable[[dict], bool]) -> list[dict]:
    """The steps at the end of a run that all meet a condition."""
    return list(takewhile(condition, reversed(training)))


def _groups(training: list[dict]) -> float:
    """Groups of some steps; none where a run has not counted them."""
    return sum(column(training, "group_count"))


def advantage(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """Advantages without spread though rewards differ within groups: a bug, or the wrong estimator."""
    spreads = latest(training[1:], "advantage_std", SUSTAINED)
    shares = latest(training[1:], "group_zero_variance_share", SUSTAINED)
    if not spreads or (shares and min(shares) == 1):
        return None
    bad = max(spreads) < HEALTHY["advantage_std"].low
    reason = f"standard deviation of the advantages {', '.join(f'{s:.3g}' for s in spreads)}"
    change = "check --advantage_estimator group_norm and the range of the rewards"
    return graded(bad, False, reason, {"last": spreads}, change)


# What a task logs of its format, and what a response then has.
FORMATS = {"has_program": "a program", "answered": "an answer", "has_boxed": "a boxed answer"}


def answer_format(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """Responses without `\\boxed{}`, without a program where programs are asked for, conversations without an answer:
    below 90% is a warning, below one half the format is lost (docs/sources.md)."""
    name = next((name for name in FORMATS if column(training, name)), None)
    if name is None:
        return None
    what, values = FORMATS[name], column(training, name)
    first, last = values[0], mean(values[-SUSTAINED:])
    falling = len(values) > SUSTAINED and last < first - 0.2
    reason = f"{last:.0%} of the responses have {what}, {first:.0%} at first"
    low = HEALTHY[name].low
    change = "raise --generate_max_len where responses are cut; else a short supervised phase (data/sft_train.jsonl)"
    bad = len(values) >= SUSTAINED and (last < 0.5 or (falling and last < low))
    return graded(bad, last < low or falling, reason, {"last": last, "first": first}, change)


def truncation(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """Responses cut at the length limit: above one half raise the limit, above 80% the model rambles."""
    name = "truncated" if column(training, "truncated") else "response_clip_ratio"
    values = column(training, name)
    if not values:
        return None
    last = values[-SUSTAINED:]
    reason = f"{mean(last):.0%} of the responses of the last {len(last)} steps are cut"
    bad = len(last) == SUSTAINED and min(last) > HEALTHY["response_clip_ratio"].high
    change = "raise --generate_max_len, or a length penalty in the reward (--overlong_buffer_len)"
    return graded(bad, mean(last) > HEALTHY["truncated"].high, reason, {name: last}, change)


def length_collapse(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """A sharp drop of the response length; harmless only where the reward rises with it."""
    lengths, rewards = trend(training, "response_length", SUSTAINED), trend(training, "reward", SUSTAINED)
    if not lengths:
        return None
    first, last, _ = lengths
    better = rewards is not None and rewards[1] - rewards[0] > rewards[2]
    reason = f"mean length {first:.0f} -> {last:.0f} tokens" + (", while the reward rises" if better else "")
    numbers = {"first": first, "last": last}
    change = "raise --init_kl_coef, check the entropy, reward length or lower the learning rate"
    return graded(last < 0.5 * first and not better, last < 0.7 * first, reason, numbers, change)


def reward_hacking(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """Samples with a high reward and a wrong answer: impossible with exact match, so the reward is being gamed."""
    values = column(training, "high_reward_but_wrong")
    if not values:
        return None
    last = values[-SUSTAINED:]
    growing = len(values) >= 10 and mean(values[-5:]) > 2 * mean(values[:5]) and mean(values[-5:]) > 0.05
    reason = f"{mean(last):.1%} of the samples have a high reward and a wrong answer"
    change = "weight the reward towards correctness, or add a second judge"
    return graded(growing, max(last) > 0, reason, {"last": last}, change)


def grader(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """The lenient grader accepts what the strict one refuses: right answers go unrewarded."""
    values = column(training, "lenient_disagreement")
    if not values:
        return None
    last = values[-SUSTAINED:]
    reason = f"{mean(last):.1%} of the samples are right for the lenient grader only"
    change = "read such samples, and fix the extraction or the labels (docs/grading.md)"
    return graded(False, mean(last) > HEALTHY["lenient_disagreement"].high, reason, {"last": last}, change)


def flat(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """No progress in twenty steps or more: reward as at first, little KL, stable entropy."""
    if len(training) < FLAT_STEPS:
        return None
    name = "correctness" if column(training, "correctness") else "reward_mean"
    half = min(len(training) // 2, 20)
    rewards, spread = trend(training, name, half), trend(training, "entropy_mean", half)
    if not rewards:
        return None
    first, last, error = rewards
    still = abs(last - first) <= 2 * error
    steady = spread is None or abs(spread[1] - spread[0]) <= 0.1 * abs(spread[0])
    moves = [abs(value) for value in column(training[-half:], "kl") + column(training[-half:], "ppo_kl")]
    quiet = not moves or max(moves) < 1e-3
    reason = f"{name} {first:.3f} -> {last:.3f} (error {error:.3f}) over {len(training)} steps"
    numbers = {"first": first, "last": last, "error": error, "largest_kl": max(moves, default=None)}
    change = (
        "raise --actor_learning_rate (5e-7 -> 1e-6 -> 2e-6), lower --init_kl_coef, raise --n_samples_per_prompt "
        "(8 -> 16); one at a time"
    )
    return graded(False, still and steady and quiet, reason, numbers, change)
