"""The report's curves: smoothing, thinning, marks, intervals, and what they say in a browser."""

import random
import re
import shutil
import subprocess

import pytest
from report_runs import lines, training_line

from rft.evals.page import shorten
from rft.runs.report import charts, cli
from rft.runs.report.data import load

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr",
)  # fmt: skip


def test_long_text_keeps_its_end():
    text = shorten("a" * 9000 + "the answer", 3000)
    assert len(text) < 3100 and text.endswith("the answer") and "6010 characters left out" in text


def test_thinning_loses_no_spike():
    curve = [(float(i), 0.0) for i in range(10_000)]
    curve[7777] = (7777.0, 99.0)
    kept = charts.thin(curve)
    assert len(kept) <= 400 and (7777.0, 99.0) in kept and kept == sorted(kept)


def test_smoothing_keeps_a_line_and_does_not_lag():
    line = [(float(i), 2.0 * i) for i in range(200)]
    assert all(abs(a[1] - b[1]) < 0.2 for a, b in zip(line[20:-20], charts.smoothed(line)[20:-20], strict=True))
    step = [(float(i), float(i >= 100)) for i in range(200)]
    assert abs(charts.smoothed(step)[100][1] - 0.5) < 0.1


def test_smooth_line_of_a_long_run_is_its_mean_not_its_extremes():
    numbers = random.Random(0)
    curve = [(float(i), numbers.random() ** 8) for i in range(20_000)]  # mean 1/9, extremes 0 and 1
    middle = [value for _, value in charts.smoothed(charts.averaged(curve))[20:-20]]
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
    drawn = charts.chart("x", [[(float(i), v) for i, v in enumerate(values)]], (0, len(values)), band)
    places = [float(y) for y in re.findall(r"M[\d.]+ ([-\d.]+)h0", drawn["runs"][0]["raw"])]
    bottom = charts.HEIGHT - charts.BOTTOM
    assert len(places) == len(values) and all(charts.TOP <= y <= bottom for y in places)
    assert len({label for _, label in drawn["y_ticks"]}) == len(drawn["y_ticks"])
    if drawn["band"]:
        assert drawn["band"]["top"] >= charts.TOP - 0.1
        assert drawn["band"]["top"] + drawn["band"]["height"] <= bottom + 1.6


def test_rounding_noise_is_drawn_flat_with_short_labels():
    drawn = charts.chart("x", [[(1, 0.93541437), (2, 0.93541443), (3, 0.93541443)]], (1, 3))
    assert len({round(float(y)) for y in re.findall(r"M[\d.]+ ([-\d.]+)h0", drawn["runs"][0]["raw"])}) == 1
    assert max(len(label) for _, label in drawn["y_ticks"]) <= 5


def test_unhealthy_values_are_marked():
    drawn = charts.chart("truncated", [[(1, 0.2), (2, 0.9)]], (1, 2), (None, 0.5))["runs"][0]
    assert drawn["bad"].count("M") == 1 and drawn["healthy"] is False and drawn["unhealthy"] == 1


def test_evaluation_in_the_loop_has_an_interval_where_n_is_known(make_run):
    run = load(make_run())
    sizes = cli.problems_in_loop(run)
    assert sizes == {(10, "eval_ood_greedy_pass@1"): 50}
    (drawn,) = charts.loop_charts([run], [sizes])
    assert drawn["runs"][0]["whisker"].count("M") == 1 and drawn["measured"]


def test_numbers_of_problems_are_no_curve_but_the_n_of_each_interval(make_run):
    path = make_run()
    record = {"eval_a_greedy_pass@1": 0.5, "eval_a_problems": 8, "eval_b_greedy_pass@1": 0.5, "eval_b_problems": 200}
    (path / "eval_metrics.jsonl").write_text(lines([{"global_step": step, **record} for step in (10, 20)]))
    run = load(path)
    first, second = charts.loop_charts([run], [cli.problems_in_loop(run)])
    assert (first["name"], second["name"]) == ("eval_a_greedy_pass@1", "eval_b_greedy_pass@1")
    for drawn in (first, second):
        assert drawn["runs"][0]["whisker"].count("M") == 2 and drawn["measured"]
    assert cli.problems_in_loop(run)[20, "eval_b_greedy_pass@1"] == 200  # eval_samples_step10 has 50, of both sets


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


def test_filter_runs_in_the_browser_from_the_address(make_run, browse):
    path = make_run()
    cli.main([str(path)])
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


def test_filter_follows_what_is_typed(make_run, browse):
    path = make_run()
    cli.main([str(path)])
    text = (path / "report.html").read_text()
    typed = """<script>form = document.getElementById("filter"); form.elements.low.value = "0.5";
    form.elements.q.value = "Question 2"; form.elements.kind.value = "training";
    form.elements.q.dispatchEvent(new Event("input", {bubbles: true})); document.title = location.hash;</script>"""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace("</body>", f"{typed}</body>")
    (path / "typed.html").write_text(text)
    dom = browse(path / "typed.html")
    assert "<title>#kind=training&amp;q=Question+2&amp;reward=0.5..</title>" in dom
    assert ">4 of 74 samples match<" in dom


def test_curves_are_read_out_in_the_browser(make_run, browse):
    one, two = make_run("a", steps=10), make_run("b", steps=20)
    cli.main([str(one), str(two)])
    dom = browse(two / "comparison.html", "#at=15")
    last = f"{training_line(15)['grad_norm']:.4g}"
    figure = re.search(r'<figure class="chart" data-metric="grad_norm">(.*?)</figure>', dom, re.DOTALL)[1]
    assert "step 15: " in figure and f">{float(last)} <" in figure and ">– <" in figure  # A ended at step 10
    assert re.search(r'class="cursor on"', figure)
