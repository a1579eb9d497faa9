"""Which of two evaluations is better, problem by problem, in a sentence that does not claim more than the numbers."""

from statistics import NormalDist

from rft.evals.compare import ALPHA, outcome, versus
from rft.evals.page import flips
from rft.runs.report.config import base_model, fingerprints, shown_options, table
from rft.runs.report.data import Run
from rft.stats import holm, least_detectable_gain

POWER = 0.8
FLIPS_SHOWN, FLIP_CHARS = 20, 1_500  # of each kind and comparison; evals.html holds more
SEED_NOTE = (
    "The interval covers the choice of problems, not the luck of training: to know what a setting does, compare runs "
    "of several seeds."
)


def within(run: Run) -> list[dict]:
    """The adapter against the model before training, from evals/before.json and evals/after.json of one run."""
    found = pairs(run.posthoc.get("before.json", []), run.posthoc.get("after.json", []), "before", "after")
    return adjusted(found)


def between(runs: list[Run]) -> list[dict]:
    """Every later run against the first one, from their evals/after.json; one entry a dataset and mode."""
    first, found = runs[0], []
    for run in runs[1:]:
        sides = [r.posthoc.get("after.json", []) for r in (first, run)]
        for r, results in zip((first, run), sides, strict=True):
            if not results:
                found.append(refused(first.label, run.label, f"{r.label} has no evals/after.json"))
        if all(sides):
            found += pairs(*sides, first.label, run.label)
    return adjusted(found)


def pairs(before: list[dict], after: list[dict], name_a: str, name_b: str) -> list[dict]:
    """One comparison a dataset and mode, each `{a, b, versus, refused, flips}`; `versus` is None where refused is set.

    Of several results of one dataset and mode the last counts.
    """
    sides = [{(r["dataset"], r["mode"]): r | {"model": name} for r in results}
             for results, name in ((before, name_a), (after, name_b))]  # fmt: skip
    found = []
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        a, b = (side.get(key) for side in sides)
        if a is None or b is None:
            lacks = name_a if a is None else name_b
            found.append(refused(name_a, name_b, f"{lacks} was not evaluated on {key[0]} in mode {key[1]}"))
            continue
        ids = [{record["id"] for record in side["records"]} for side in (a, b)]
        if ids[0] != ids[1]:
            sizes = f"{len(ids[0] & ids[1])} of {len(ids[0])} and {len(ids[1])} problems are in both"
            why = f"{name_a} and {name_b} were not evaluated on the same problems of {key[0]} ({sizes})"
            found.append(refused(name_a, name_b, f"{why}; evaluate both on one file with eval/eval_posthoc.py"))
            continue
        try:
            compared = b | {"versus": versus(a, b, seed=0)}
        except ValueError as error:
            found.append(refused(name_a, name_b, str(error)))
            continue
        found.append({
            "a": name_a, "b": name_b, "versus": compared["versus"], "refused": None, "n": b["n"],
            "values": (a[key[1]], b[key[1]]), "flips": flips(compared, a, FLIPS_SHOWN, FLIP_CHARS),
        })  # fmt: skip
    return found


def refused(name_a: str, name_b: str, why: str) -> dict:
    return {
        "a": name_a,
        "b": name_b,
        "versus": None,
        "refused": why,
        "outcome": "unclear",
        "sentence": f"No verdict: {why}.",
    }


def adjusted(comparisons: list[dict]) -> list[dict]:
    """The comparisons with Holm's p over all of them and their sentences."""
    judged = [one for one in comparisons if one["versus"]]
    for one, p in zip(judged, holm([one["versus"]["p_value"] for one in judged]), strict=True):
        one["versus"]["p_holm"] = p
        one["detectable"] = detectable(one["versus"], one["n"])
        one["outcome"] = outcome(one["versus"])
        one["sentence"] = sentence(one)
    return comparisons


def detectable(compared: dict, n: int) -> float:
    """The smallest true difference, in shares of problems, that n problems would show with 80% power at 5%.

    From the bootstrap interval's half width h, h·(z₀.₉₇₅ + z₀.₈)/z₀.₉₇₅; at least `least_detectable_gain`, which also
    speaks where no problem changed hands and the interval has no width. 1 where nothing would be significant.
    """
    z, power = NormalDist().inv_cdf(1 - ALPHA / 2), NormalDist().inv_cdf(POWER)
    low, high = compared["interval95"]
    return min(1.0, max((high - low) / 2 * (z + power) / z, least_detectable_gain(n, ALPHA, POWER) or 1.0))


def sentence(one: dict) -> str:
    """What a comparison's outcome is, with its numbers. The p-value is Holm's, so that one of many does not shine."""
    v, a, b = one["versus"], one["a"], one["b"]
    low, high = (f"{100 * end:+.1f}" for end in v["interval95"])
    p = v["p_holm"]
    numbers = (
        f"{v['metric']} on {v['dataset']} {100 * v['difference']:+.1f} points (95% interval {low} to {high}; "
        f"{v['won']} problems won, {v['lost']} lost of {one['n']}; p {'< 0.0001' if p < 1e-4 else f'= {p:.2g}'})"
    )
    if one["outcome"] != "unclear":
        return f"{b} is {one['outcome']} than {a}: {numbers}."
    return (
        f"{b} and {a} cannot be told apart: {numbers}. With these {one['n']} problems a true difference below about "
        f"{100 * one['detectable']:.1f} points is missed more often than once in five."
    )


def warnings(runs: list[Run]) -> list[str]:
    """What keeps a difference between runs from meaning what it seems to mean."""
    found, first = [], runs[0]
    for run in runs[1:]:
        pair = f"{first.label} and {run.label}"
        models = base_model(first), base_model(run)
        if None in models:
            found.append(f"{pair}: whether they started from one base model is unknown.")
        elif models[0] != models[1]:
            found.append(
                f"{pair} started from different base models ({models[0][:12]}, {models[1][:12]}): the difference of "
                "their results is partly that of the models."
            )
        prints = table([fingerprints(first), fingerprints(run)])
        inputs = [row["name"] for row in prints if row["differs"] and row["name"].startswith("inputs.")]
        if inputs:
            names = ", ".join(name.removeprefix("inputs.") for name in inputs)
            found.append(f"{pair} read different inputs: the digests of {names} differ.")
        if first.manifest.get("tree_id") != run.manifest.get("tree_id"):
            found.append(f"{pair} ran on different patched trees (tree_id): see the fingerprints.")
        differing = [row["name"] for row in table([shown_options(first), shown_options(run)]) if row["differs"]]
        if len(differing) > 1:
            found.append(f"{pair} differ in {len(differing)} options: the result cannot be attributed to one of them.")
        elif not differing and run.manifest and first.manifest:
            found.append(f"{pair} have the same options: what differs is noise, code or data.")
        elif differing == ["seed"]:
            found.append(f"{pair} differ in the seed only: what differs is the noise between runs.")
    return found
