"""Several runs as a table: what they were, what they gained, how they compare with the first, and what they cost."""

from rft.runs.monitor.forecast import gpus, price
from rft.runs.monitor.state import run_options
from rft.runs.report import costs
from rft.runs.report.acceptance import Verdict
from rft.runs.report.comparisons import within
from rft.runs.report.config import launched, shown_options, table
from rft.runs.report.data import Run, number

OPTIONS_SHOWN = 4  # of those that differ; the page lists all further below
NONE = "–"


def rows(runs: list[Run], between: list[dict], accepted: list[Verdict | None]) -> list[dict]:
    """One row a run, all texts.

    Args:
        between: `rft.runs.report.comparisons.between` of the same runs.
        accepted: the acceptance of each run.

    Returns:
        `run`, `recipe` (launcher and recipe), `options` (those that differ from the first run's), `on` (dataset and
        mode), `before`, `after`, `gain`, `against` (the first run; differences in points with 95% intervals),
        `outcome` (better, worse, unclear), `gpu_hours`, `cost`, `tokens` (a second), `accepted`.
    """
    return [row(run, runs[0], between, verdict) for run, verdict in zip(runs, accepted, strict=True)]


def row(run: Run, first: Run, between: list[dict], accepted: Verdict | None) -> dict:
    own = next((one for one in within(run) if one["versus"]), None)
    other = next((one for one in between if one["b"] == run.label and one["versus"]), None)
    before, after = (f"{value:.3f}" for value in own["values"]) if own else (NONE, NONE)
    hours, each = gpu_hours(run), price()
    return {
        "run": run.name,
        "recipe": ", ".join(filter(None, launched(run))) or NONE,
        "options": differing(first, run),
        "on": f"{own['versus']['dataset']}, {own['versus']['mode']}" if own else NONE,
        "before": before,
        "after": after,
        "gain": points(own["versus"]) if own else NONE,
        "against": NONE if run is first else points(other["versus"]) if other else "no verdict",
        "outcome": other["outcome"] if other else "unclear",
        "gpu_hours": NONE if hours is None else f"{hours:,.1f}",
        "cost": NONE if hours is None or each is None else f"{hours * each:,.2f}",
        "tokens": costs.whole_number(costs.median(run, "tokens_per_second_step")),
        "accepted": accepted.word if accepted else NONE,
    }


def points(versus: dict) -> str:
    """`+15.0 (+10.1 to +20.2)`, in points."""
    low, high = versus["interval95"]
    return f"{100 * versus['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def differing(first: Run, run: Run) -> str:
    """The options that differ from the first run's, with this run's values."""
    if run is first:
        return NONE
    options = shown_options(run)
    names = [row["name"] for row in table([shown_options(first), options]) if row["differs"]]
    shown = [f"{name} {options.get(name, 'not set')}" for name in names[:OPTIONS_SHOWN]]
    more = len(names) - len(shown)
    return ", ".join(shown + ([f"{more} more"] if more else [])) or "none"


def gpu_hours(run: Run) -> float | None:
    """GPUs of the run times the hours of its phases; None on a CPU, or where either is not known."""
    found = gpus(run.manifest, run_options(run.manifest))
    seconds = sum(number(phase.get("seconds")) or 0 for phase in run.phases)
    return found.total * seconds / 3600 if found and seconds else None
