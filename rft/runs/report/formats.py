"""What a supervised run did to the format of answers, from its `result.json` (`rft.runs.sft_summary`)."""

from rft.evals.table import interval, p_value
from rft.options.unknown import SFT_MODULE
from rft.runs.report import charts
from rft.runs.report.data import Run
from rft.runs.sft_summary import SHOWN


def is_supervised(run: Run) -> bool:
    """Whether the run's command trains on given answers."""
    command = run.manifest.get("command")
    return isinstance(command, list) and SFT_MODULE in command


def rows(run: Run) -> list[dict[str, str]]:
    """A row for each rate of the format checks: `what`, `before`, `after`, `difference`, `p`; none without them."""
    found = []
    try:
        for name, what in SHOWN.items():
            sides = [run.result[side][name] for side in ("before", "after")]
            change = run.result["change"][name]
            before, after = (f"{side['value']:.3f} {interval(side['interval95'])}" for side in sides)
            difference = f"{change['difference']:+.3f} {interval(change['interval95'])}"
            p = p_value(change["p_value"])
            found.append({"what": what, "before": before, "after": after, "difference": difference, "p": p})
    except (KeyError, TypeError, ValueError):  # unfinished, or of another kind of run
        return []
    return found


def verdicts(run: Run) -> str:
    """`SFT first → go to GRPO`, before and after; empty without both."""
    sides = [run.result.get(side) for side in ("before", "after")]
    found = [side.get("verdict") for side in sides if isinstance(side, dict)]
    return " → ".join(map(str, found)) if len(found) == 2 and all(found) else ""


def tiles(run: Run) -> list[tuple[str, str, str]]:
    """Loss of the first and the last step, and on held-out rows: (title, value, beside it)."""
    losses = [value for _, value in charts.points(run.training, "sft_loss")]
    held_out = [value for _, value in charts.points(run.loop, "sft_eval_loss")]
    named = (("loss", losses, "nats a learned token"), ("held-out loss", held_out, "rows that are not learned"))
    return [(title, f"{each[0]:.3f} → {each[-1]:.3f}", beside) for title, each, beside in named if each]
