"""The report of a run: what it reads, what it claims, and what a hostile text cannot do to it."""

import html
import json
import random
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from rft.evals.page import shorten
from rft.evaluation import summarize
from rft.runs import report, report_charts, report_config, report_samples, report_verdict, training_options
from rft.runs.healthy import HEALTHY
from rft.runs.report_data import load

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'`\u2028\u2029]]>--><!--{{7*7}}"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr",
)  # fmt: skip


def lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def evaluation(name: str, right: list[bool], dataset: str = "d.jsonl", mode: str = "greedy_pass@1", **other) -> dict:
    records = [
        {
            "id": f"p{i}", "index": 0, "label": "7", "response": f"answer {i} {EVIL}", "answer": "7", "correct": ok,
            "correct_lenient": ok, "has_boxed": True, "label_valid": True, "truncated": False, "tokens": 10,
        }
        for i, ok in enumerate(right)
    ]  # fmt: skip
    settings = {"temperature": 0.0, "max_tokens": 64, "system_prompt": None, "reasoning_effort": "low", "grader": "g"}
    given = {"model": name, "kind": "adapter", "dataset": dataset, "mode": mode, "problems": "x"}
    return given | settings | {"weights": {"base": "b" * 64}} | summarize(records, mode) | {"records": records} | other


def training_line(step: int) -> dict:
    numbers = random.Random(step)
    return {"global_step": step, **{name: 0.3 + 0.2 * numbers.random() for name in HEALTHY}}


def sample_line(problem: int, index: int, text: str = "") -> dict:
    right = index % 2 == 0
    return {
        "prompt": f"<|start|>user<|message|>question {problem}<|end|><|start|>assistant", "label": "7",
        "response": f"<|channel|>final<|message|>thought {index} {text}<|return|>", "reward": float(right),
        "correctness": float(right), "extracted_answer": "7", "response_tokens": 9, "truncated": 0.0,
    }  # fmt: skip


@pytest.fixture
def make(tmp_path):
    """A whole run directory; `make(name, right=…, seed=…, options=…)`."""

    def run(name: str = "20261121T100000Z", right: int = 40, steps: int = 30, options=(), base: str = "b" * 64):
        path = tmp_path / "train_x" / name
        for folder in ("evals", "samples", "adapter"):
            (path / folder).mkdir(parents=True)
        command = [
            "/opt/place/rft/.venv/bin/python", "-m", "openrlhf.cli.train_ppo_ray", "--save_path", f"{path}/adapter",
            "--remote_rm_url", "/opt/place/rft/rewards/r.py", "--target_modules", "q_proj", "k_proj", "--flag",
            "--lr", "-1e-3", "--wandb_run", "secret", *options,
        ]  # fmt: skip
        manifest = {
            "started": "2026-11-21T10:00:00+00:00", "command": command, "git": {"commit": "c" * 40, "dirty": True},
            "tree_id": {"vllm": "t1"}, "versions": {"torch": "2.10.0"}, "inputs": {f"{path}/model": "d" * 64},
        }  # fmt: skip
        (path / "run.json").write_text(json.dumps(manifest))
        (path / "training_metrics.jsonl").write_text(lines([training_line(i) for i in range(1, steps + 1)]))
        (path / "eval_metrics.jsonl").write_text(
            lines([{"global_step": i, "eval_ood_greedy_pass@1": 0.5 + i / 100} for i in (0, 10, 20)])
        )
        spike = {"context": f"before {EVIL}", "token": "boom", "score": 3.5, "log_prob": -9.0, "advantage": 1.0}
        micro = {"log_ratio_max": 2.0, "log_ratio_min": -7.25}
        (path / "spike_log.jsonl").write_text(
            lines([{
                "global_step": 12, "rank": 0, "grad_norm": 812.0, "threshold": 50.0, "bundle": "spikes/step_12_rank_0",
                "micro_batches": [micro], "worst_tokens": [spike],
            }])
        )  # fmt: skip
        (path / "decisions.jsonl").write_text(
            lines([{"global_step": 20, "rule": "ood_drop", "action": "watch", "reason": EVIL, "numbers": {"v": 0.4}}])
        )
        (path / "phases.jsonl").write_text(lines([{"phase": "grpo", "seconds": 3700.0}]))
        (path / "memory.json").write_text('{"peak_gb": 6.37}')
        (path / "result.json").write_text('{"steps": 30}')
        for file, count in (("before", 20), ("after", right)):
            result = evaluation(file, [i < count for i in range(60)], weights={"base": base})
            (path / "evals" / f"{file}.json").write_text(json.dumps([result]))
        for step in (10, 20):
            rows = [sample_line(p, i, EVIL if p == 1 else "carry") for p in range(3) for i in range(4)]
            (path / "samples" / f"samples_step{step}.jsonl").write_text(lines(rows))
        (path / "samples" / "eval_samples_step10.jsonl").write_text(lines([sample_line(p, 0) for p in range(50)]))
        return path

    return run


class Parsed(HTMLParser):
    """Tags, attributes that would load something, and text without scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.fetched, self.handlers, self.text, self.scripts = [], [], [], "", 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        loads = ("src", "href", "xlink:href", "data", "action", "poster", "srcset")
        self.fetched += [v for k, v in attributes if k in loads and not (v or "").startswith("#")]
        self.handlers += [k for k, _ in attributes if k.startswith("on") or k == "style"]
        self.scripts += tag == "script"

    def handle_data(self, data):
        if self.tags[-1:] != ["script"] and self.tags[-1:] != ["style"]:
            self.text += data


def page_of(*paths) -> str:
    return report.page(report.load_all(list(paths)))


def test_page_holds_every_piece_and_fetches_nothing(make):
    path = make()
    text = page_of(path)
    parsed = Parsed(text)
    assert parsed.fetched == [] and parsed.handlers == []
    assert not {"img", "link", "iframe", "object"} & set(parsed.tags)
    assert "url(" not in text and "@import" not in text and "default-src 'none'" in text
    for piece in (
        "train_x/20261121T100000Z", "\nfinished", "1 h 01 min", "6.4 GB", "step 12", "812", "spikes/step_12_rank_0",
        "ood_drop", "watch", "question 2", "thought 3", "target_modules", "q_proj k_proj", "versions.torch", "2.10.0",
        "cccccccccc with uncommitted changes", "Every piece of the run was found", "eval_ood_greedy_pass@1", *HEALTHY,
    ):  # fmt: skip
        assert piece in parsed.text, piece
    assert text == page_of(path)


def test_hostile_texts_stay_texts(make):
    text = page_of(make())
    parsed = Parsed(text)
    assert parsed.scripts == 2  # the data and ours
    assert EVIL in parsed.text
    # In a script element nothing of the run can end it or begin a comment.
    data = re.search(r'<script type="application/json" id="curve-data">(.*?)</script>', text, re.DOTALL)[1]
    assert "<" not in data and json.loads(data)["runs"][0]["steps"][:2] == [1, 2]
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert html.unescape(f"script-src '{report.csp_hash(script)}'") in html.unescape(text)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert f"style-src '{report.csp_hash(style)}'" in html.unescape(text)


def spoiled(value, key=""):
    """The same nested value, every text hostile, but those that decide what is shown."""
    if isinstance(value, dict):
        return {k: spoiled(v, k) for k, v in value.items()} | {f"extra {EVIL}": 1.5}
    if isinstance(value, list):
        return [spoiled(item, key) for item in value]
    return value + EVIL if isinstance(value, str) and key not in ("mode", "id") else value


def test_nothing_of_a_run_becomes_markup_wherever_it_stands(make):
    paths = [make("a", right=10), make("b", right=50)]
    for path in paths:
        (path / "best.json").write_text(json.dumps({"path": "x"}))
        for file in path.rglob("*.json"):
            file.write_text(json.dumps(spoiled(json.loads(file.read_text()))))
        for file in path.rglob("*.jsonl"):
            file.write_text(lines([spoiled(json.loads(line)) for line in file.read_text().splitlines()]))
    parsed = Parsed(page_of(*paths))
    assert parsed.scripts == 2 and "img" not in parsed.tags and parsed.handlers == [] and parsed.fetched == []
    assert parsed.text.count(EVIL) > 200 and "is better than" in parsed.text


def test_a_metric_or_option_with_a_hostile_name_is_escaped(make):
    path = make(options=("--x", EVIL))
    (path / "eval_metrics.jsonl").write_text(lines([{"global_step": 1, f"eval_{EVIL}_pass1": 0.5}]))
    parsed = Parsed(page_of(path))
    assert parsed.scripts == 2 and f"eval_{EVIL}_pass1" in parsed.text


@pytest.mark.parametrize("kept", [(), ("run.json",), ("training_metrics.jsonl",), ("eval_metrics.jsonl",)])
def test_unfinished_run_names_what_is_missing(make, kept):
    path = make()
    for entry in list(path.iterdir()):
        if entry.name not in kept:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if not kept:
        with pytest.raises(ValueError, match="nothing of a run in it"):
            page_of(path)
        return
    text = Parsed(page_of(path)).text
    assert "not finished" in text
    for piece in {"run.json", "training_metrics.jsonl", "eval_metrics.jsonl", "phases.jsonl"} - set(kept):
        assert f"{piece}: not there" in text
    assert "evals/after.json: not there" in text and "--save_steps" in text


def test_torn_and_broken_files_are_read_as_far_as_they_go(make):
    path = make()
    for file in list(path.rglob("*.json*")):
        whole = file.read_text()
        file.write_text(whole + whole[: len(whole) // 3] if file.suffix == ".jsonl" else whole[: len(whole) // 2])
    with (path / "training_metrics.jsonl").open("a") as stream:
        stream.write(
            '{"global_step": 31, "rew{"global_step": 31}\n[1]\n{"global_step": "x"}\n{"global_step": 32}\n{"gl'
        )
    run = load(path)
    assert run.training[-1]["global_step"] == 32 and run.manifest == {} and run.posthoc == {}
    text = Parsed(page_of(path)).text
    assert "training_metrics.jsonl: 3 of" in text and "the last line is torn" in text
    assert "run.json: cannot be read" in text and "evals/after.json: cannot be read" in text


@pytest.mark.parametrize("junk", ["null", "[]", "3", '"x"', "{}", "[[]]", '[{"mode": 1}]', '{"command": 3, "git": []}'])
def test_json_of_another_shape_does_not_break_the_page(make, junk):
    path = make()
    for file in list(path.rglob("*.json*")):
        file.write_text(junk + "\n")
    page_of(path)


def test_values_of_another_kind_do_not_break_the_page(make):
    path = make()
    odd = ["text", None, [], {}, True, 1e400, -1]
    for file in list(path.rglob("*.jsonl")):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        spoiled = [{k: (v if k == "global_step" else odd[(i + j) % len(odd)]) for j, (k, v) in enumerate(row.items())}
                   for i, row in enumerate(rows)]  # fmt: skip
        file.write_text(lines(spoiled))
    page_of(path)


def test_stopped_run_says_which_rule_stopped_it(make):
    path = make()
    manifest = json.loads((path / "run.json").read_text())
    stopped = {"global_step": 28, "rule": "ood_drop", "reason": "0.41, then 0.38", "exit_status": 10}
    (path / "run.json").write_text(json.dumps(manifest | {"stopped": stopped}))
    (path / "best.json").write_text(json.dumps({"global_step": 20, "path": f"{path}/checkpoints/global_step20"}))
    text = Parsed(page_of(path)).text
    assert "stopped at step 28 by the rule ood_drop: 0.41, then 0.38" in text
    assert "path RUN/checkpoints/global_step20" in text


def test_spike_bundles_count_where_the_log_lacks_them(make):
    path = make()
    (path / "spikes" / "step_29_rank_1").mkdir(parents=True)
    spike = {"global_step": 29, "rank": 1, "grad_norm": None, "threshold": 50, "bundle": "spikes/step_29_rank_1"}
    (path / "spikes" / "step_29_rank_1" / "spike.json").write_text(json.dumps(spike))
    text = Parsed(page_of(path)).text
    assert "step 29" in text and "not finite" in text and len(load(path).spikes) == 2


def test_repeated_steps_count_once_and_nulls_are_told(make):
    path = make(steps=4)
    rows = [training_line(i) | {"grad_norm": None} for i in (2, 3)]
    with (path / "training_metrics.jsonl").open("a") as stream:
        stream.write(lines(rows))
    run = load(path)
    assert [r["global_step"] for r in run.training] == [1, 2, 3, 4]
    assert "2 not finite" in Parsed(page_of(path)).text


def test_options_of_a_command():
    command = [
        "py",
        "-m",
        "openrlhf.cli.train_ppo_ray",
        "--a",
        "1",
        "--b",
        "x",
        "y",
        "--c",
        "--lr=-2",
        "--neg",
        "-1e-3",
        "--a",
        "2",
    ]
    assert training_options.options(command) == {"a": "2", "b": "x y", "c": "on", "lr": "-2", "neg": "-1e-3"}


def test_configuration_shows_no_place_of_the_machine_and_no_key(make, tmp_path):
    path = make(options=("--wandb_api_key", "abc", "--other", "/mnt/data/x"))
    shown = report_config.shown_options(report.load_all([path])[0])
    assert shown["save_path"] == "RUN/adapter" and shown["remote_rm_url"] == "rewards/r.py"
    assert shown["wandb_api_key"] == "hidden (ba7816)" and shown["other"] == "/mnt/data/x"
    text = page_of(path)
    assert str(tmp_path) not in text and "/opt/place" not in text and "abc" not in Parsed(text).text
    copied = tmp_path / "elsewhere"  # a copy under another name
    shutil.copytree(path, copied)
    assert report_config.shown_options(report.load_all([copied])[0])["save_path"] == "RUN/adapter"


def test_two_runs_differ_where_they_differ(make):
    one, two = make("a", options=("--eps_clip", "0.2")), make("b", options=("--eps_clip", "0.1", "--extra"))
    runs = report.load_all([one, two])
    rows = report_config.table([report_config.shown_options(run) for run in runs])
    assert {row["name"]: row["values"] for row in rows if row["differs"]} == {
        "eps_clip": ["0.2", "0.1"], "extra": ["not set", "on"],
    }  # fmt: skip
    text = Parsed(page_of(one, two)).text
    assert "differ in 2 options: the result cannot be put down to one of them" in text


def test_verdict_better_worse_and_cannot_tell(make):
    low, high, near = make("low", right=20), make("high", right=50), make("near", right=22)
    better, unclear = report_verdict.between(report.load_all([low, high, near]))
    assert better["outcome"] == "better" and better["sentence"].startswith(
        "B is better than A: greedy_pass@1 on d.jsonl"
    )
    assert "+50.0 points" in better["sentence"] and "30 problems won, 0 lost of 60" in better["sentence"]
    assert unclear["outcome"] == "unclear" and "C and A cannot be told apart" in unclear["sentence"]
    assert f"{100 * unclear['detectable']:.1f} points is missed more often" in unclear["sentence"]
    assert unclear["versus"]["p_holm"] >= unclear["versus"]["p_value"]
    (worse,) = report_verdict.between(report.load_all([high, low]))
    assert worse["outcome"] == "worse"


def test_identical_outcomes_still_say_what_could_not_be_seen(make):
    (one,) = report_verdict.between(report.load_all([make("a"), make("b")]))
    assert one["outcome"] == "unclear" and one["versus"]["interval95"] == [0.0, 0.0]
    assert 0.05 < one["detectable"] < 0.3  # 60 problems


def test_detectable_difference_has_the_power_it_claims():
    """Simulated: 200 problems, 15% lost whatever happens; a true gain of the reported size is found 4 times in 5."""
    generator, n, lost = random.Random(0), 200, 0.15
    gain = 0.13

    def p_value(gain: float) -> tuple[float, float]:
        draws = [generator.random() for _ in range(n)]
        before = [x < lost for x in draws]
        after = [lost <= x < 2 * lost + gain for x in draws]
        v = report_verdict.versus(evaluation("a", before), evaluation("b", after), seed=0)
        return v["p_value"], report_verdict.detectable(v, n)

    found = [p_value(gain) for _ in range(40)]
    sizes = [size for _, size in found]
    assert min(sizes) > 0.08 and max(sizes) < 0.16
    assert 0.6 < sum(p < 0.05 for p, _ in found) / 40 < 1.0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mode": "sampling_pass@8"}, "was not evaluated on d.jsonl in mode greedy_pass@1"),
        ({"dataset": "e.jsonl"}, "was not evaluated on e.jsonl"),
        ({"max_tokens": 128}, "found max_tokens 64 and 128"),
        ({"grader": "h"}, "found grader"),
    ],
)
def test_no_verdict_where_evaluations_cannot_be_compared(make, changed, message):
    one, two = make("a"), make("b")
    (result,) = json.loads((two / "evals" / "after.json").read_text())
    if "mode" in changed:
        result[changed["mode"]] = result[result["mode"]]
        result["metrics"] = {changed["mode"]: result["metrics"][result["mode"]]}
    (two / "evals" / "after.json").write_text(json.dumps([result | changed]))
    text = Parsed(page_of(one, two)).text
    assert "No verdict: " in text and message in text


def test_no_verdict_on_other_problems_or_without_an_evaluation(make):
    one, two = make("a"), make("b")
    (two / "evals" / "after.json").write_text(json.dumps([evaluation("after", [True] * 50)]))
    assert "(50 of 60 and 50 problems are in both)" in Parsed(page_of(one, two)).text
    (two / "evals" / "after.json").unlink()
    assert "No verdict: B has no evals/after.json." in Parsed(page_of(one, two)).text


def test_differences_of_another_cause_are_warned_of(make):
    one, two = make("a", options=("--seed", "0")), make("b", base="e" * 64, options=("--seed", "1"))
    manifest = json.loads((two / "run.json").read_text())
    inputs = dict.fromkeys(manifest["inputs"], "0" * 64)
    (two / "run.json").write_text(json.dumps(manifest | {"tree_id": {"vllm": "t2"}, "inputs": inputs}))
    warned = " ".join(report_verdict.warnings(report.load_all([one, two])))
    assert "different base models" in warned and "different patched trees" in warned and "the seed only" in warned
    assert "read different inputs: the digests of RUN/model differ" in warned
    third = make("c", options=("--seed", "0"))
    assert "have the same options" in " ".join(report_verdict.warnings(report.load_all([one, third])))


def test_evaluations_of_before_the_field_metrics_are_read(make):
    path = make()
    (result,) = json.loads((path / "evals" / "after.json").read_text())
    old = {k: result[k] for k in ("model", "kind", "dataset", "mode", "greedy_pass@1", "n", "interval95", "truncated")}
    old["records"] = [{k: r[k] for k in ("id", "label", "response", "correct")} for r in result["records"]]
    (path / "evals" / "after.json").write_text(json.dumps([old]))
    text = Parsed(page_of(path)).text
    assert "0.667" in text and "cannot be read" not in text


def test_samples_stay_within_their_budget_and_say_so(make):
    path = make()
    for step in range(100, 160):
        rows = [sample_line(p, i, "x" * 8000) for p in range(16) for i in range(8)]
        (path / "samples" / f"samples_step{step}.jsonl").write_text(lines(rows))
    text = page_of(path)
    assert len(text.encode()) < 2_000_000
    found = report_samples.samples(load(path))
    assert found["total"] == 60 * 128 + 2 * 12 + 50 and found["shown"] < found["total"]
    assert f"{found['shown']} of {found['total']} saved samples" in Parsed(text).text
    steps = [group["step"] for group in found["groups"]]
    assert steps[0] == 10 and steps[-1] == 159  # the whole run, not its beginning
    assert "characters left out" in text


def test_two_long_runs_stay_below_two_megabytes(make):
    paths = [make("a", right=10, steps=200), make("b", right=60, steps=200)]
    for path in paths:
        for name in ("before", "after"):
            (result,) = json.loads((path / "evals" / f"{name}.json").read_text())
            for record in result["records"]:
                record["response"] = "&" * 20_000
            (path / "evals" / f"{name}.json").write_text(json.dumps([result]))
        for step in range(100, 140):
            rows = [sample_line(p, i, "y" * 12_000) for p in range(16) for i in range(8)]
            (path / "samples" / f"samples_step{step}.jsonl").write_text(lines(rows))
    assert len(page_of(*paths).encode()) < 2_000_000


def test_long_text_keeps_its_end():
    text = shorten("a" * 9000 + "the answer", 3000)
    assert len(text) < 3100 and text.endswith("the answer") and "6010 characters left out" in text


def test_thinning_loses_no_spike():
    curve = [(float(i), 0.0) for i in range(10_000)]
    curve[7777] = (7777.0, 99.0)
    kept = report_charts.thin(curve)
    assert len(kept) <= 400 and (7777.0, 99.0) in kept and kept == sorted(kept)


def test_smoothing_keeps_a_line_and_does_not_lag():
    line = [(float(i), 2.0 * i) for i in range(200)]
    assert all(abs(a[1] - b[1]) < 0.2 for a, b in zip(line[20:-20], report_charts.smoothed(line)[20:-20], strict=True))
    step = [(float(i), float(i >= 100)) for i in range(200)]
    assert abs(report_charts.smoothed(step)[100][1] - 0.5) < 0.1


def test_smooth_line_of_a_long_run_is_its_mean_not_its_extremes():
    numbers = random.Random(0)
    curve = [(float(i), numbers.random() ** 8) for i in range(20_000)]  # mean 1/9, extremes 0 and 1
    middle = [value for _, value in report_charts.smoothed(report_charts.averaged(curve))[20:-20]]
    assert len(middle) <= 400 and all(0.08 < value < 0.14 for value in middle)


@pytest.mark.parametrize(
    ("values", "band"),
    [
        ([0.0], (None, None)),
        ([0.0, 0.0], (None, 0.0)),
        ([5.0], (None, 2.0)),
        ([1e-9, 1e9], (1e-9, 50)),
        ([-3.0, 4.0], (-0.05, 0.05)),
        ([1e-300, 2e-300], (None, None)),
        ([1.0, 1.0000001], (None, None)),
        ([7.0, 7.0], (0.5, None)),
    ],
)
def test_charts_hold_every_value_and_the_broken_bound(values, band):
    drawn = report_charts.chart("x", [[(float(i), v) for i, v in enumerate(values)]], (0, len(values)), band)
    places = [float(y) for y in re.findall(r"M[\d.]+ ([-\d.]+)h0", drawn["runs"][0]["raw"])]
    bottom = report_charts.HEIGHT - report_charts.BOTTOM
    assert len(places) == len(values) and all(report_charts.TOP <= y <= bottom for y in places)
    assert len({label for _, label in drawn["y_ticks"]}) == len(drawn["y_ticks"])
    if drawn["band"]:
        assert drawn["band"]["top"] >= report_charts.TOP - 0.1
        assert drawn["band"]["top"] + drawn["band"]["height"] <= bottom + 1.6


def test_unhealthy_values_are_marked():
    drawn = report_charts.chart("truncated", [[(1, 0.2), (2, 0.9)]], (1, 2), (None, 0.5))["runs"][0]
    assert drawn["bad"].count("M") == 1 and drawn["healthy"] is False and drawn["unhealthy"] == 1


def test_evaluation_in_the_loop_has_an_interval_where_n_is_known(make):
    run = load(make())
    sizes = report.problems_in_loop(run)
    assert sizes == {(10, "eval_ood_greedy_pass@1"): 50}
    (drawn,) = report_charts.loop_charts([run], [sizes])
    assert drawn["runs"][0]["whisker"].count("M") == 1 and drawn["measured"]


def test_numbers_of_problems_are_no_curve_but_the_n_of_each_interval(make):
    path = make()
    record = {"eval_a_greedy_pass@1": 0.5, "eval_a_problems": 8, "eval_b_greedy_pass@1": 0.5, "eval_b_problems": 200}
    (path / "eval_metrics.jsonl").write_text(lines([{"global_step": step, **record} for step in (10, 20)]))
    run = load(path)
    first, second = report_charts.loop_charts([run], [report.problems_in_loop(run)])
    assert (first["name"], second["name"]) == ("eval_a_greedy_pass@1", "eval_b_greedy_pass@1")
    for drawn in (first, second):
        assert drawn["runs"][0]["whisker"].count("M") == 2 and drawn["measured"]
    assert report.problems_in_loop(run)[20, "eval_b_greedy_pass@1"] == 200  # eval_samples_step10 has 50, of both sets


def test_command_writes_beside_the_run_and_refuses_bad_input_with_one_message(make, tmp_path, capsys):
    one, two = make("a"), make("b")
    assert report.main([str(one)]) == 0 and (one / "report.html").is_file()
    assert report.main([str(one), str(two)]) == 0 and (two / "comparison.html").is_file()
    assert report.main([str(one), "--output", str(tmp_path / "new" / "x.html")]) == 0
    for arguments, message in (
        ([str(tmp_path / "absent")], "no such directory"),
        ([str(tmp_path)], "nothing of a run in it"),
        ([str(one), str(one)], "twice"),
        ([str(one), "--output", str(one / "report.html" / "x.html")], "File exists"),
    ):
        capsys.readouterr()
        assert report.main(arguments) == 2
        errors = capsys.readouterr().err
        assert errors.startswith("report: ") and len(errors.splitlines()) == 1 and message in errors


def test_places_of_one_run_are_not_taken_for_another_s(make, monkeypatch, tmp_path):
    one, two = make("a", steps=3), make("b", steps=5)
    monkeypatch.setenv("METRICS_LOG_DIR", str(one))
    monkeypatch.setenv("SAMPLES_LOG_DIR", str(one / "samples"))
    (two / "training_metrics.jsonl").unlink()
    assert len(report.load_all([two])[0].training) == 0  # its evaluations are there, so the variable is another run's
    (two / "eval_metrics.jsonl").unlink()
    assert [len(run.training) for run in report.load_all([one, two])] == [3, 0]
    assert len(report.load_all([two])[0].training) == 3  # alone, the variable can only mean this run


@pytest.fixture
def browse(tmp_path):
    """The page's document after its script ran, in headless Chromium: `browse(file, fragment)`."""
    if CHROMIUM is None:
        pytest.skip("found no chromium on PATH; the page's script is tested in it")

    def dump(file, fragment: str = "") -> str:
        command = [CHROMIUM, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000"]
        command += ["--dump-dom", f"file://{file}{fragment}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        assert "Content Security Policy" not in done.stderr
        return done.stdout

    return dump


def visible(dom: str) -> list[tuple[str, str]]:
    """(reward, text) of the samples that are not hidden."""
    sample = r'<article class="sample" data-reward="([^"]*)" data-right="\w+"( hidden="")?>(.*?)</article>'
    found = re.findall(sample, dom, re.DOTALL)
    return [(reward, text) for reward, hidden, text in found if not hidden]


def test_filter_runs_in_the_browser_from_the_address(make, browse):
    path = make()
    report.main([str(path)])
    for fragment, count in (
        ("", 74), ("#reward=0.5..&right=yes&kind=training", 12), ("#reward=0&q=CARRY", 8),
        ("#q=question%202&step=20", 4), ("#run=%3Cb%3E&step=9&q=nowhere", 0),
    ):  # fmt: skip
        dom = browse(path / "report.html", fragment)
        assert f">{count} of 74 samples match<" in dom, fragment
        shown = visible(dom)
        assert len(shown) == min(count, 40)
        if "reward=0&q" in fragment:
            assert all(reward == "0.0" and "carry" in text for reward, text in shown)
        assert "owned" not in re.search(r"<title>(.*?)</title>", dom)[1]


def test_filter_follows_what_is_typed(make, browse):
    path = make()
    report.main([str(path)])
    text = (path / "report.html").read_text()
    typed = """<script>form = document.getElementById("filter"); form.elements.low.value = "0.5";
    form.elements.q.value = "Question 2"; form.elements.kind.value = "training";
    form.elements.q.dispatchEvent(new Event("input", {bubbles: true})); document.title = location.hash;</script>"""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace("</body>", f"{typed}</body>")
    (path / "typed.html").write_text(text)
    dom = browse(path / "typed.html")
    assert "<title>#kind=training&amp;q=Question+2&amp;reward=0.5..</title>" in dom
    assert ">4 of 74 samples match<" in dom


def test_curves_are_read_out_in_the_browser(make, browse):
    one, two = make("a", steps=10), make("b", steps=20)
    report.main([str(one), str(two)])
    dom = browse(two / "comparison.html", "#at=15")
    last = f"{training_line(15)['grad_norm']:.4g}"
    figure = re.search(r'<figure class="chart" data-metric="grad_norm">(.*?)</figure>', dom, re.DOTALL)[1]
    assert "step 15: " in figure and f">{float(last)} <" in figure and ">– <" in figure  # A ended at step 10
    assert re.search(r'class="cursor on"', figure)
