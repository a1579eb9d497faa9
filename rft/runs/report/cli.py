"""One self-contained HTML page about a run, or about several side by side.

    .venv/bin/python -m rft.runs.report RUN [RUN …] [--output FILE.html]

Reads what a run directory holds (docs/running.md), finished or not, and names what is missing. The page fetches
nothing. RUN is a run's directory, or a folder of runs, of which the newest is taken. Default output: RUN/report.html;
with several runs LAST_RUN/comparison.html. Exit status 2: bad input.
"""

import argparse
import base64
import hashlib
import re
import shlex
import sys
from pathlib import Path

from rft.evals.page import environment
from rft.record.eval_names import problems_metric
from rft.record.files import replace_text
from rft.record.samples import EVALUATION, sample_file
from rft.runs import best
from rft.runs.ending import ending
from rft.runs.find import chosen_run
from rft.runs.report import acceptance, charts, comparisons, config, costs, formats, samples, side_by_side
from rft.runs.report.data import Run, count, dicts, load, number

HERE = Path(__file__).parent
SPIKES_SHOWN, TOKENS_SHOWN, DECISIONS_SHOWN = 40, 10, 200


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m rft.runs.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run or folder of runs; the first is the baseline"
    )
    parser.add_argument("--output", type=Path, metavar="FILE.html")
    args = parser.parse_args(argv)
    default = "report.html" if len(args.runs) == 1 else "comparison.html"
    try:
        if args.output and args.output.is_dir():
            found = f"found the folder {args.output}; wanted a file for the page"
            raise ValueError(f"{found}; pass --output {shlex.quote(str(args.output / default))}")
        runs = [chosen_run(path) for path in args.runs]
        output = args.output or runs[-1] / default
        loaded = load_all(runs)
        text = page(loaded)
        replace_text(output, text)
    except (ValueError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    for run in loaded:
        if verdict := acceptance.acceptance(run):
            print(f"{run.label}: acceptance {verdict.word}: {'; '.join(verdict.reasons)}")
    print(f"written: {output} ({len(text.encode()) / 1e6:.2f} MB)")
    return 0


def load_all(run_dirs: list[Path]) -> list[Run]:
    """The runs, labelled. Raises ValueError for what is no run directory, or is named twice."""
    paths = [path.resolve() for path in run_dirs]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice:
        raise ValueError(f"found {twice} twice; wanted different runs; name each one once")
    runs = [load(path, alone=len(paths) == 1) for path in run_dirs]
    for run, label in zip(runs, config.labels(paths), strict=True):
        run.label = label
    return runs


def page(runs: list[Run]) -> str:
    """The page's text. Every text from a run is escaped: models write what they like."""
    style = (HERE.parents[1] / "evals" / "style.css").read_text(encoding="utf-8") + (HERE / "report.css").read_text(
        "utf-8"
    )
    script = (HERE / "report.js").read_text(encoding="utf-8")
    kinds = {formats.is_supervised(run) for run in runs}
    tiers = charts.tiers(runs, kinds)
    budget = samples.BUDGET // len(runs)
    read = [samples.samples(run, budget) for run in runs]
    between, accepted = comparisons.between(runs), [acceptance.acceptance(run) for run in runs]
    names = [chart["name"] for tier in tiers for chart in tier["charts"]]
    templates = environment(HERE)
    templates.filters |= {"three": three, "harmony": harmony, "question": question, "numbers": numbers}
    return templates.get_template("report.html.jinja").render(
        runs=runs,
        style=style,
        script=script,
        style_hash=csp_hash(style),
        script_hash=csp_hash(script),
        heads=[head(run) for run in runs],
        tiers=tiers,
        others=charts.others(runs),
        flips_shown=comparisons.FLIPS_SHOWN,
        loop_charts=charts.loop_charts(runs, [problems_in_loop(run) for run in runs]),
        posthoc=[posthoc_rows(run) for run in runs],
        formats=[formats.rows(run) for run in runs],
        within=[comparisons.within(run) for run in runs],
        between=between,
        accepted=accepted,
        side_by_side=side_by_side.rows(runs, between, accepted) if len(runs) > 1 else [],
        warnings=comparisons.warnings(runs),
        seed_note=comparisons.SEED_NOTE,
        options=config.table([config.shown_options(run) for run in runs]),
        prints=config.table([config.fingerprints(run) for run in runs]),
        times=[costs.times(run) for run in runs],
        step_charts=[costs.step_chart(run) for run in runs],
        memory_charts=[costs.memory_charts(run) for run in runs],
        peaks=[costs.peaks(run) for run in runs],
        spikes=[spikes(run) for run in runs],
        decisions_shown=DECISIONS_SHOWN,
        samples=read,
        sample_steps=sorted({group["step"] for one in read for group in one["groups"]}),
        text_limit=samples.TEXT,
        hover=charts.hover(runs, names),
        size=(charts.WIDTH, charts.HEIGHT),
        axis=charts,
        wide=(costs.WIDTH, costs.HEIGHT),
    )  # fmt: skip


def csp_hash(content: str) -> str:
    """Source of a Content-Security-Policy that admits this inline content and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def head(run: Run) -> dict:
    """The head of a run's report: `status`, `tiles` ((title, value, beside it))."""
    stopped, steps = run.manifest.get("stopped"), len(run.training)
    last = run.training[-1]["global_step"] if run.training else 0
    if isinstance(stopped, dict):
        status = f"{ending(stopped)[1]}: {stopped.get('reason')}"
    else:
        status = "finished" if run.result else f"not finished; the last recorded step is {last}"
    tiles = [("steps", str(last), f"{steps} on record" if steps != last else "")]
    if rewards := charts.points(run.training, "reward_mean") or charts.points(run.training, "reward"):
        k = max(1, min(10, len(rewards) // 3))
        ends = [sum(v for _, v in part) / k for part in (rewards[:k], rewards[-k:])]
        tiles.append(
            (
                "reward",
                f"{ends[0]:.3f} → {ends[1]:.3f}",
                f"mean of the first and last {k} steps" if k > 1 else "first and last step",
            )
        )
    tiles += held_out(run) + formats.tiles(run)
    if verdict := formats.verdicts(run):
        tiles.append(("format", verdict, "greedy, before and after"))
    seconds = sum(number(phase.get("seconds")) or 0 for phase in run.phases)
    if seconds:
        tiles.append(("time", duration(seconds), "all phases"))
    tiles += costs.tiles(run)
    if number(run.memory.get("peak_gb")):
        tiles.append(("peak memory", f"{run.memory['peak_gb']:.1f} GB", "host, all processes"))
    if run.spikes:
        tiles.append(("spikes", str(len({s["global_step"] for s in run.spikes})), "steps above the threshold"))
    git = run.manifest.get("git") if isinstance(run.manifest.get("git"), dict) else {}
    started = re.sub(r"T(\d\d:\d\d):\d\d\+00:00", r" \1 UTC", str(run.manifest.get("started") or "at an unknown time"))
    started = f"started {started}"
    if git.get("commit"):
        started += f", commit {str(git['commit'])[:10]}" + (" with uncommitted changes" if git.get("dirty") else "")
    return {
        "status": status,
        "best": {name: config.shortened(str(value), run) for name, value in run.best.items()},
        "best_measured": best.lines(run.result.get("best")),
        "started": started,
        "stopped": bool(stopped),
        "finished": bool(run.result),
        "tiles": tiles,
    }


def held_out(run: Run) -> list[tuple[str, str, str]]:
    """A tile for the post-hoc evaluations before and after, or for the one that there is."""
    ends = [run.posthoc[file][-1] for file in ("before.json", "after.json") if file in run.posthoc]
    if len({(r["dataset"], r["mode"]) for r in ends}) != 1:
        return []
    value = " → ".join(f"{r[r['mode']]:.3f}" for r in ends)
    return [(f"{ends[0]['mode']}, post hoc", value, f"{ends[0]['dataset']}, {ends[0]['n']} problems")]


def three(value: object) -> str:
    """A number with three digits; a dash for what is none."""
    return "–" if number(value) is None else charts.text(value)


def numbers(value: object) -> str:
    """The numbers of a decision, `name value, …`; what is no dict unchanged."""
    if not isinstance(value, dict):
        return "" if value is None else str(value)
    return ", ".join(f"{name} {v if number(v) is None else three(v)}" for name, v in value.items())


def harmony(response: str) -> list[tuple[bool, str]]:
    """A response cut at its special tokens: (whether it is one, text)."""
    parts = re.split(r"(<\|[^|<>]{1,40}\|>)", response)
    return [(i % 2 == 1, part) for i, part in enumerate(parts) if part]


def question(prompt: str) -> str:
    """The end of the last user message of a Harmony prompt, or of the prompt, in one line."""
    messages = re.findall(r"<\|start\|>user<\|message\|>(.*?)<\|end\|>", prompt, re.DOTALL)
    line = " ".join((messages[-1] if messages else prompt).split())
    return line if len(line) <= 200 else f"… {line[-200:]}"


def duration(seconds: float) -> str:
    """1 h 05 min, 3 min 29 s, 12 s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def problems_in_loop(run: Run) -> dict[tuple[float, str], int]:
    """Number of problems by step and metric, for the shares of problems among an evaluation's metrics.

    The evaluation says it; older ones leave it to their saved samples, and unknown where several sets share those.
    """
    known = {}
    for record in run.loop:
        step, shares = record["global_step"], [name for name in record if charts.is_share(name)]
        file = sample_file(run.samples_path, EVALUATION, int(step))
        for name in shares:
            if logged := number(record.get(problems_metric(name))):
                known[step, name] = round(logged)
            elif len(shares) == 1 and name.endswith(charts.PASS_AT_1) and file.is_file():
                known[step, name] = count(file, run.notes.append)
    return known


def posthoc_rows(run: Run) -> list[dict]:
    """Every number of every file in evals/, with its interval."""
    return [
        {
            "file": file, "model": r["model"], "dataset": r["dataset"], "metric": name, "value": metric["value"],
            "low": metric["interval95"][0], "high": metric["interval95"][1], "n": r["n"],
            "truncated": r["truncated"], "mean_tokens": r["mean_tokens"],
        }
        for file, results in run.posthoc.items()
        for r in results
        for name, metric in r["metrics"].items()
    ]  # fmt: skip


def spikes(run: Run) -> dict:
    """The largest spikes, in the order of the steps, with their worst tokens; `total` counts lines of all ranks."""
    ranked = sorted(run.spikes, key=lambda s: number(s.get("grad_norm")) or float("inf"), reverse=True)[:SPIKES_SHOWN]
    shown = []
    for spike in sorted(ranked, key=lambda s: (s["global_step"], str(s.get("rank")))):
        micros = dicts(spike.get("micro_batches"))
        tails = {}
        for name, pick in (
            ("log_ratio_raw_max", max),
            ("log_ratio_max", max),
            ("log_ratio_min", min),
            ("ratio_max", max),
        ):
            values = [m[name] for m in micros if number(m.get(name)) is not None]
            tails |= {name: pick(values)} if values else {}
        tokens = dicts(spike.get("worst_tokens"))
        norm = three(spike.get("grad_norm")) if number(spike.get("grad_norm")) is not None else "not finite"
        shown.append(
            {"facts": spike, "norm": norm, "tails": tails, "tokens": tokens[:TOKENS_SHOWN], "all_tokens": len(tokens)}
        )
    return {"shown": shown, "total": len(run.spikes)}
