"""Results as one self-contained HTML page: jinja2, figures as inline SVG, nothing fetched."""

import io
from pathlib import Path

from rft.evals.scores import by_problem
from rft.evals.searches import sentence
from rft.evals.table import met, p_value
from rft.grading.short_answer import answers_of, is_search_label
from rft.record.conversation import turns_of

HERE = Path(__file__).parent
SHOWN = 50  # flips of one kind and comparison whose responses are in the page
RESPONSE_CHARS = 4_000
TURN_CHARS = 500  # of one turn of a conversation at least
DESCRIBED = (
    "kind", "temperature", "top_p", "samples_per_problem", "seed", "max_tokens", "reasoning_effort", "system_prompt",
    "template", "agent", "retriever", "served", "weights", "problems", "grader", "isolation", "tree_id",
)  # fmt: skip


def page(results: list[dict]) -> str:
    """The page's text. Every response and label is escaped: models write what they like."""
    compared = [result for result in results if "versus" in result]
    return (
        environment()
        .get_template("page.html.jinja")
        .render(
            results=results,
            style=(HERE / "style.css").read_text(encoding="utf-8"),
            compared=compared,
            notes=dict.fromkeys(f"{r['dataset']}, {r['mode']}: {r['note']}" for r in results if r.get("note")),
            flips={(r["model"], r["dataset"], r["mode"]): flips(r, baseline_of(r, results)) for r in compared},
            accuracy=accuracy_figure(results),
            length=length_figure(results),
            described=DESCRIBED,
            shown=SHOWN,
        )
    )


def environment(*directories: Path):
    """A jinja2 environment over these directories of templates and this one: everything escaped, no name undefined."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader([*directories, HERE])
    found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    found.filters["p"] = p_value
    found.filters["met"] = met
    found.filters["sentence"] = sentence
    return found


def baseline_of(result: dict, results: list[dict]) -> dict:
    """The result that one is compared with."""
    wanted = [result["versus"]["baseline"], result["dataset"], result["mode"]]
    return next(r for r in results if [r["model"], r["dataset"], r["mode"]] == wanted)


def flips(result: dict, base: dict, shown: int = SHOWN, chars: int = RESPONSE_CHARS) -> dict[str, list[dict]]:
    """Problems that were won and lost, at most `shown` of each, with label, correct samples and the turns of both
    sides' first response, shortened to `chars`; a response without an environment is one turn."""
    before, after = by_problem(base["records"]), by_problem(result["records"])

    def flip(id_: str) -> dict:
        label = label_words(after[id_][0]["label"])
        return {"id": id_, "label": label, "before": side(before[id_]), "after": side(after[id_])}

    def side(group: list[dict]) -> dict:
        correct = sum(r["correct"] for r in group)
        return {"correct": correct, "samples": len(group), "turns": shortened(turns_of(group[0]), chars)}

    return {kind: [flip(id_) for id_ in result["versus"]["flips"][kind][:shown]] for kind in ("won", "lost")}


def label_words(label: str) -> str:
    """The label; of a question that is searched for the answers that count."""
    try:
        return " or ".join(answers_of(label)) if is_search_label(label) else label
    except ValueError:
        return label


def shortened(turns: list[dict], chars: int) -> list[dict]:
    """`by` and `text` of turns whose texts together have about `chars` characters, of each turn 500 at least."""
    room = max(TURN_CHARS, chars // len(turns)) if len(turns) > 1 else chars
    return [{"by": turn["by"], "text": shorten(turn["text"], room)} for turn in turns]


def shorten(text: str, chars: int) -> str:
    """A text above `chars` characters without its middle: the answer is at the end."""
    if len(text) <= chars:
        return text
    head, tail = chars * 2 // 3, chars // 3
    return f"{text[:head]}\n[… {len(text) - head - tail} characters left out …]\n{text[-tail:]}"


def accuracy_figure(results: list[dict]) -> str:
    """SVG: the mode's value of every model with its 95% interval, one panel a dataset and mode."""
    panels = list(dict.fromkeys((r["dataset"], r["mode"]) for r in results))
    figure, axes = _axes(len(panels), max(len([r for r in results if (r["dataset"], r["mode"]) == p]) for p in panels))
    for axis, (dataset, mode) in zip(axes, panels, strict=True):
        rows = [r for r in results if (r["dataset"], r["mode"]) == (dataset, mode)]
        values = [r[mode] for r in rows]
        errors = [
            [value - r["interval95"][0] for value, r in zip(values, rows, strict=True)],
            [r["interval95"][1] - value for value, r in zip(values, rows, strict=True)],
        ]
        axis.errorbar(values, range(len(rows)), xerr=errors, fmt="o", capsize=4, color="#1f5fa8")
        axis.set_yticks(range(len(rows)), [r["model"] for r in rows])
        axis.set(xlim=(-0.02, 1.02), ylim=(len(rows) - 0.5, -0.5), xlabel=f"{mode} on {dataset}, n={rows[0]['n']}")
        axis.grid(axis="x", alpha=0.3)
    return _svg(figure)


def length_figure(results: list[dict]) -> str:
    """SVG: completion tokens of every sample, cut ones apart, one panel a result."""
    figure, axes = _axes(len(results), 2)
    for axis, r in zip(axes, results, strict=True):
        whole = [record["tokens"] for record in r["records"] if not record["truncated"]]
        cut = [record["tokens"] for record in r["records"] if record["truncated"]]
        axis.hist([whole, cut], bins=30, stacked=True, color=["#1f5fa8", "#b42318"], label=["finished", "truncated"])
        axis.set(xlabel=f"completion tokens: {r['model']} on {r['dataset']}, {r['mode']}", ylabel="samples")
        axis.legend()
    return _svg(figure)


def _axes(panels: int, rows: int):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, panels * (1.0 + 0.45 * max(2, rows))), layout="constrained")
    return figure, figure.subplots(panels, squeeze=False)[:, 0]


def _svg(figure) -> str:
    """The figure as an SVG element: text as text, without the XML prologue and metadata, which name addresses."""
    import matplotlib

    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rft", "text.parse_math": False}):
        figure.savefig(text, format="svg", metadata=nothing)
    return text.getvalue()[text.getvalue().index("<svg") :]
