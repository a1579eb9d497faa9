"""Rules about the optimisation and the sync: "stability" of docs/sources.md, and what only this stack measures."""

from itertools import pairwise

from rft.rules.healthy import HEALTHY
from rft.rules.verdict import Verdict, column, graded, latest, mean, trend

SUSTAINED = 3  # steps: one bad step is noise, three in a row are a state
GRADIENT_BOUND = 100.0  # smoke-test table: above it the learning rate is too high
GRADIENT_FLOOR = 50.0  # times the first step's that is not 0
MISMATCH_WARN, MISMATCH_BAD = 2.0, 4.0  # times the first step's
MISMATCH_USUAL = 0.018  # nats a token, a good mean for gpt-oss; growth far below it is rounding
MISMATCH_LEVEL_BAD = 0.1  # nats a token; no published gpt-oss run that learns is above, see docs/diagnosis.md
GIB = 2**30
LOWER_LR = "lower --actor_learning_rate (by 2 to 5 times)"
SPIKE_CHANGE = (
    f"tighten --eps_clip (0.2 -> 0.1), or {LOWER_LR}; read the worst tokens with rft.runs.replay_spike; clipping "
    "advantages does not help, for extreme log-probability ratios are the cause"
)
# Share of the probed layer outputs that moved, from which an update must show in the canary on an engine with noise,
# which is itself a rounding of some outputs; `rft.hooks.canary`.
LOUD = 0.5


def not_finite(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """A loss, gradient norm or reward that is NaN or infinite, written as null: Adam's moments are lost from there."""
    names = ("policy_loss", "grad_norm", "grad_norm_max", "reward", "kl", "ppo_kl")
    if not any(name in record for record in training for name in names):
        return None
    broken = [(r["global_step"], n) for r in training for n in names if n in r and r[n] is None]
    reason = f"{broken[0][1]} is not a number from step {broken[0][0]} on" if broken else "every loss is a number"
    numbers = {"first_step": broken[0][0], "metrics": sorted({n for _, n in broken})} if broken else {}
    change = f"{LOWER_LR} and resume from a checkpoint before that step; replay it with rft.runs.replay_spike"
    return graded(bool(broken), False, reason, numbers, change)


def frozen_weights(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """Nothing is trained: no gradient, no learning rate, no update, or a synced adapter that never differs.

    Steps whose groups are all without variance have no gradient rightly; `no_signal` speaks of those.
    """
    last = training[-SUSTAINED:]
    if len(last) < SUSTAINED or all(r.get("group_zero_variance_share") == 1 for r in last):
        return None
    # B holds updates of any size, so what shows is asked; runs of before measured the weights alone.
    shown = "sync_output_moved_share" if "sync_output_moved_share" in last[-1] else "sync_changed_share"
    signs = {name: latest(training, name, SUSTAINED) for name in ("grad_norm", "actor_lr", shown)}
    signs = {name: values for name, values in signs.items() if values is not None}
    versions = latest(training, "sync_adapter_version", SUSTAINED)
    if versions:
        signs["sync_adapter_version"] = versions
    if not signs:
        return None
    dead = [name for name, values in signs.items() if not any(values)]
    if versions and len(set(versions)) == 1 and "sync_adapter_version" not in dead:
        dead.append("sync_adapter_version")
    words = f"{', '.join(dead)} without a change in the last {SUSTAINED} steps" if dead else "the weights move"
    change = (
        "check --actor_learning_rate, --freezing_actor_steps and --target_modules, and that the optimizer holds the "
        "adapter's parameters"
    )
    return graded(bool(dead), False, words, {name: signs[name] for name in dead or signs}, change)


def dropped_sync(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """The sync changed weights, and the engine still used older ones.

    A step's canary and `adapter_version` speak of the adapter that the step before has sent. Asynchronous training
    samples with an older one; only a version that does not change is an error there.
    """
    judged = [
        (a, b) for a, b in pairwise(training) if a.get("sync_changed_share") and b.get("sync_canary_shift") is not None
    ]
    versions, sent = (latest(training, n, SUSTAINED) for n in ("adapter_version", "sync_adapter_version"))
    if not judged and not (versions and sent):
        return None
    unmoved = [b["global_step"] for a, b in judged if not b["sync_canary_shift"] and _visible(a)]
    stuck = bool(versions and sent) and len(set(versions)) == 1 and len(set(sent)) == SUSTAINED
    numbers = {"steps_with_unmoved_canary": unmoved}
    if versions and sent:
        numbers |= {"adapter_version": versions, "sync_adapter_version": sent}
    reason = "the engine samples with the adapter that was sent"
    if unmoved:
        reason = f"weights had changed and no log-probability of the canary had, first at step {unmoved[0]}"
    elif stuck:
        reason = f"rollouts still come from adapter version {versions[-1]:.0f}, while version {sent[-1]:.0f} was sent"
    change = "verify the patches on every node (bash apply_patches.sh verify --ray) and read the engine's log"
    return graded(bool(unmoved) or stuck, False, reason, numbers, change)


def _visible(step: dict) -> bool:
    """Whether a step's update must move the canary on an engine with noise; without noise the canary itself raises.

    Older runs know only how much of the update the weights kept.
    """
    if (moved := step.get("sync_output_moved_share")) is not None:
        return moved >= LOUD
    return (step.get("sync_kept_share") or 0) >= 0.5


def gradient(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """Gradient norms far beyond the first step's, or above 100, for several steps: the learning rate is too high."""
    norms = column(training, "grad_norm")
    if not norms:
        return None
    last, usual = norms[-SUSTAINED:], HEALTHY["grad_norm"].high
    # A step whose groups all lack variance has a norm of 0, and is nothing to compare with.
    floor = next((norm for norm in norms if norm), 0.0)
    sustained = len(last) == SUSTAINED
    bad = sustained and min(last) > GRADIENT_BOUND
    # Healthy norms are far above the floor where the first step had little to learn from.
    beyond = sustained and len(norms) > SUSTAINED and min(last) > max(GRADIENT_FLOOR * floor, usual)
    high = last[-1] > usual
    reason = f"last gradient norms {_list(last)}, first {floor:.3g}"
    numbers = {"last": last, "first": floor, "bounds": [GRADIENT_BOUND, GRADIENT_FLOOR * floor]}
    return graded(bad or beyond, high, reason, numbers, f"{LOWER_LR}, or lengthen --lr_warmup_ratio")


def mismatch(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """Trainer and engine drift apart: their mean difference on a sampled token against that of the first step."""
    values = column(training, "mismatch_abs_mean")
    if not values:
        return None
    floor, last = values[0], values[-SUSTAINED:]
    lowest = min(last) if len(values) > SUSTAINED else 0.0
    warn = lowest > max(MISMATCH_WARN * floor, MISMATCH_USUAL)
    bad = lowest > max(MISMATCH_BAD * floor, MISMATCH_WARN * MISMATCH_USUAL)
    reason = f"last mismatches {_list(last)} nats, first {floor:.3g}"
    change = (
        f"{LOWER_LR}; try --enable_vllm_is_correction; compare engine and adapter with eval/eval_posthoc.py, whose "
        "probe refuses a wrong sync"
    )
    numbers = {"last": last, "first": floor, "times": [value / floor for value in last if floor]}
    return graded(bad, warn, reason, numbers, change)


def mismatch_level(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """Trainer and engine are far apart, since the first step perhaps: they compute different models."""
    last = latest(training, "mismatch_abs_mean", SUSTAINED)
    if not last:
        return None
    usual = HEALTHY["mismatch_abs_mean"].high
    reason = f"last mismatches {_list(last)} nats, wanted below {usual:g}"
    change = (
        "measure both models on the same tokens (.venv/bin/python -m benchmarks.parity), by position too; verify the "
        "patches on every node; random and 4-bit weights are that far apart by themselves; "
        "--enable_vllm_is_correction corrects it"
    )
    numbers = {"last": last, "bounds": [usual, MISMATCH_LEVEL_BAD]}
    return graded(min(last) > MISMATCH_LEVEL_BAD, min(last) > usual, reason, numbers, change)


def clipping(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """More than 40% of the tokens clipped: updates are too large (smoke-test table)."""
    last = column(training, "ppo_clip_ratio")[-SUSTAINED:]
    if not last:
        return None
    high = [value > HEALTHY["ppo_clip_ratio"].high for value in last]
    change = f"{LOWER_LR}, or take fewer updates a rollout (--train_batch_size)"
    bad = all(high) and len(last) == SUSTAINED
    return graded(bad, any(high), f"clipped shares {_list(last)}", {"last": last}, change)


def ratio_tails(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """Tokens whose probability moved by orders of magnitude within an update (docs/sources.md, "Its metric list")."""
    names = ("log_ratio_raw_max", "ratio_max", "log_ratio_abs_p99")
    found = {name: values[-10:] for name in names if (values := column(training, name))}
    if not found:
        return None
    over = [name for name, values in found.items() if max(values) > HEALTHY[name].high]
    numbers = {name: max(values) for name, values in found.items()}
    reason = ", ".join(f"{name} up to {value:.3g}" for name, value in numbers.items()) + " in the last 10 steps"
    return graded(False, bool(over), reason, numbers, SPIKE_CHANGE)


def spikes(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """Steps with a gradient norm above 50; worse where the largest of ten steps keeps growing (docs/sources.md)."""
    key = "grad_norm_max" if any(r.get("grad_norm_max") is not None for r in training) else "grad_norm"
    norms = column(training, key)
    if not norms:
        return None
    bound = HEALTHY["grad_norm"].high
    steps = [r["global_step"] for r in training if (r.get(key) or 0) > bound]
    decades = [max(norms[max(0, end - 10) : end]) for end in range(len(norms), 9, -10)][::-1]
    growing = len(decades) >= 3 and bound < decades[-1] and decades[-3] < decades[-2] < decades[-1]
    reason = f"{len(steps)} of {len(norms)} steps above {bound:.0f}, the largest {max(norms):.3g}"
    reason += ", and growing from ten steps to the next" if growing else ""
    return graded(growing, bool(steps), reason, {"steps": steps[-20:], "max_per_decade": decades}, SPIKE_CHANGE)


def instability(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """KL spikes, entropy that falls, correctness that worsens; two of the three are an unstable run (playbook)."""
    if len(training) < 10:
        return None
    signs, numbers = [], {}
    if kl := column(training[-5:], "ppo_kl"):
        bounds = HEALTHY["ppo_kl"]
        numbers["ppo_kl"] = kl
        if max(kl) > bounds.high or min(kl) < bounds.low:
            signs.append("ppo_kl beyond its bounds")
    if found := trend(training, "entropy_mean", 5):
        numbers["entropy_mean"] = found[:2]
        if found[1] < 0.5 * found[0]:
            signs.append("entropy halved")
    name = "correctness" if column(training, "correctness") else "reward_mean"
    if found := trend(training, name, 5):
        numbers[name] = found[:2]
        if found[0] - found[1] > 2 * found[2] and found[1] < found[0]:
            signs.append(f"{name} fell")
    reason = ", ".join(signs) or "no sign of it"
    change = f"{LOWER_LR}, raise --init_kl_coef, lower --max_norm"
    worse = any("fell" in sign for sign in signs)
    return graded(len(signs) >= 2 and worse, bool(signs), reason, numbers, change)


def entropy(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """Entropy of the policy against that of the first steps: a collapse ends exploration, a burst ends sense.

    A bound in nats (1.0 in docs/sources.md) holds for one model; a share of the first steps' holds for any.
    """
    values = column(training, "entropy_mean")
    if len(values) < 2 * SUSTAINED:
        return None
    first, last = mean(values[:SUSTAINED]), mean(values[-SUSTAINED:])
    reason = f"entropy {first:.3g} -> {last:.3g} nats"
    burst = last > max(5 * first, first + 1)
    if burst:
        return graded(True, True, reason, {"first": first, "last": last}, LOWER_LR)
    change = "raise --init_kl_coef or --temperature, lower the learning rate, or widen --eps_clip_low_high upwards"
    return graded(last < 0.1 * first, last < 0.3 * first, reason, {"first": first, "last": last}, change)


def rounding(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """How much of the adapter's update shows in the outputs of the engine's layers; older runs measured its weights."""
    kept = column(training, "sync_output_kept_share") or column(training, "sync_kept_share")
    if not kept:
        return None
    last = kept[-SUSTAINED:]
    change = "serve adapters by --lora_serving exact, or raise the learning rate: the engine hardly sees the updates"
    low = HEALTHY["sync_kept_share"].low
    return graded(False, len(kept) > 5 and max(last) < low, f"kept shares {_list(last)}", {"last": last}, change)


def disk(training: list[dict], evaluations: list[dict], facts: dict) -> Verdict | None:
    """Less room than 1 GiB or the next checkpoint where the run writes: a full disk loses the run, not only a file."""
    places = facts.get("disk")
    if not places:
        return None
    tightest = min(places, key=lambda place: place["free"] - max(place["need"], GIB))
    need = max(tightest["need"], GIB)
    reason = f"{tightest['free'] / GIB:.1f} GiB free at {tightest['path']}, wanted {need / GIB:.1f}"
    numbers = {"path": tightest["path"], "free_bytes": tightest["free"], "need_bytes": need}
    change = "free some space, lower --max_ckpt_num, or write to another disk (--ckpt_path, --save_path)"
    return graded(tightest["free"] < need, tightest["free"] < 3 * need, reason, numbers, change)


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
