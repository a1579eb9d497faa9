"""Every model against the first one, problem by problem, with one correction over all comparisons of a report."""

from rft.evals.paired import compare
from rft.evals.scores import by_problem, share_of_correct
from rft.stats import holm, least_detectable_gain

SMALL = 100  # problems; below, a single one moves the number by more than a point
ALPHA = 0.05  # of p after Holm


def add_comparisons(results: list[dict], seed: int = 0, baseline: str | None = None) -> list[dict]:
    """The results with `versus` (paired, against `baseline`) and, for small sets, a `note`.

    `versus`: `baseline`, `mode`, `metric` (what is compared: the share of correct samples, under its name), `dataset`,
    `difference`, `interval95` (bootstrap over problems), `p_value` (exact sign-flip), `p_holm` (Holm over every
    comparison here, A/A runs left out), `won`, `lost`, `tied`, `mcnemar_p` (None unless every problem has one outcome),
    `flips` (ids).

    Raises:
        ValueError: the baseline is not there, or ran on other problems, in another mode, or with other prompts.
    """
    baseline = baseline or results[0]["model"]
    if baseline not in {result["model"] for result in results}:
        raise ValueError(f"found no model {baseline!r}; wanted one of {sorted({r['model'] for r in results})}")
    bases = {(r["dataset"], r["mode"]): r for r in results if r["model"] == baseline}
    compared = []
    for result in results:
        result.pop("versus", None)
        result["note"] = small_set_note(result["n"]) if result["n"] < SMALL else None
        base = bases.get((result["dataset"], result["mode"]))
        if base is None or base is result:
            continue
        result["versus"] = versus(base, result, seed)
        if not result["model"].endswith("(A/A)"):
            compared.append(result["versus"])
    for one, adjusted in zip(compared, holm([one["p_value"] for one in compared]), strict=True):
        one["p_holm"] = adjusted
    return results


def versus(base: dict, result: dict, seed: int) -> dict:
    """One paired comparison, see `add_comparisons`."""
    same = ("mode", "dataset", "problems", "max_tokens", "temperature", "top_p", "samples_per_problem")
    same += ("system_prompt", "reasoning_effort", "grader", "agent")
    for field in same:
        if base.get(field) != result.get(field):
            raise ValueError(
                f"{base['model']} and {result['model']}: found {field} {base.get(field)!r} and {result.get(field)!r}; "
                "wanted one setting for both; evaluate them in one command"
            )
    groups = by_problem(base["records"]), by_problem(result["records"])
    if groups[0].keys() != groups[1].keys():
        raise ValueError(
            f"{base['model']} and {result['model']}: found different problems; evaluate them in one command"
        )
    if base.get("template") == result.get("template"):  # bases of two templates cannot have the same prompts
        asked = [{record.get("prompt") for record in side["records"]} for side in (base, result)]
        if asked[0] != asked[1]:
            raise ValueError(
                f"{base['model']} and {result['model']}: found different prompts from one template for "
                f"{len(asked[1] - asked[0])} of {len(asked[1])} problems; wanted the same; evaluate them in one command"
            )
    shares = [{id_: sum(r["correct"] for r in group) / len(group) for id_, group in side.items()} for side in groups]
    ids = list(groups[0])
    paired = compare([shares[0][id_] for id_ in ids], [shares[1][id_] for id_ in ids], seed)
    single = all(len(group) == 1 for side in groups for group in side.values())
    return {
        "baseline": base["model"],
        "mode": result["mode"],
        "metric": share_of_correct(result["mode"], result["samples_per_problem"]),
        "dataset": result["dataset"],
        "difference": paired.difference,
        "interval95": list(paired.interval95),
        "p_value": paired.p_value,
        "p_holm": None,
        "won": paired.won,
        "lost": paired.lost,
        "tied": paired.tied,
        "mcnemar_p": paired.mcnemar_p if single else None,
        "flips": {
            "won": [id_ for id_ in ids if shares[1][id_] > shares[0][id_]],
            "lost": [id_ for id_ in ids if shares[1][id_] < shares[0][id_]],
        },
    }


def outcome(compared: dict) -> str:
    """`better`, `worse` or `unclear`: what a `versus` with its `p_holm` shows. Every report says it by this.

    A difference needs both p below 5% and an interval without 0. They disagree where a few problems weigh much: 28
    problems that gain one sample of eight and one that loses all eight have p = 0.018 and an interval with 0.
    """
    low, high = compared["interval95"]
    if compared["p_holm"] >= ALPHA or low <= 0 <= high:
        return "unclear"
    return "better" if low > 0 else "worse"


def small_set_note(n: int) -> str:
    """What n problems cannot show."""
    gain = least_detectable_gain(n)
    detect = (
        f"a gain below {100 * gain:.0f} points is missed more often than once in five even if no problem is lost"
        if gain
        else "no gain at all is significant"
    )
    return f"{n} problems: one is {100 / n:.1f} points, and {detect} (exact McNemar at 5%); do not read trends from it"
