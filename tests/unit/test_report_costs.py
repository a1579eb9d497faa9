"""The report's section on time and memory: shares of phases, rates, the memory timeline; runs that lack them."""

import json
import re

import pytest
from report_runs import Parsed, lines, page_of, timeline, whole_run

from rft.record.names import TIMELINE_FILE, TRAINING_FILE
from rft.record.readers import read_jsonl
from rft.runs.report import charts, costs
from rft.runs.report.data import load


def loaded(path):
    run = load(path)
    run.label = "A"
    return run


def test_phases_of_a_step_with_shares_and_rates(tmp_path):
    run = loaded(whole_run(tmp_path))
    found = {row["name"]: row for row in costs.times(run)["step"]}
    assert list(found) == ["rollout", "experience", "train", "sync", "evaluation", "other"]
    assert found["evaluation"]["seconds"] == pytest.approx(1.0)  # 10 s every tenth step
    assert found["rollout"]["share"] == pytest.approx(8 / 17) and found["other"]["seconds"] == pytest.approx(0.5)
    assert sum(row["share"] for row in found.values()) == pytest.approx(1)
    assert found["train"]["rate"] == "9,016" and found["rollout"]["rate"] == "–"
    assert 0.3 < found["train"]["mfu"] < 0.5 and found["experience"]["mfu"] is None
    text = Parsed(page_of(run.path)).text
    for piece in ("tokens a second", "whole step, median; 1,414 a GPU", "model FLOPs utilisation", "47%", "seconds"):
        assert piece in text, piece


def columns(path: str) -> list[tuple[float, float]]:
    """(from, to) of a path's upper edges."""
    return [(float(a), float(b)) for a, b in re.findall(r"[ML]([\d.]+) [\d.]+H([\d.]+)", path)]


def test_bars_stack_to_the_step_and_long_runs_share_them(tmp_path):
    run = loaded(whole_run(tmp_path))
    drawn = costs.step_chart(run)
    assert drawn["most"] == "26" and drawn["title"] == "seconds of a step"
    layers = {layer["name"]: layer["path"] for layer in drawn["layers"]}
    assert layers["rollout"].count("Z") == 30 and layers["evaluation"].count("Z") == 3
    assert len({layer["style"] for layer in drawn["layers"]}) == len(layers)
    first, second = (float(y) for y in re.findall(r"M[\d.]+ ([\d.]+)H", layers["rollout"])[:2])
    bottom = charts_bottom()
    assert first == second and (bottom - first) == pytest.approx((bottom - 8) * 8 / (26 * 1.05), abs=0.1)
    run.training = [dict(run.training[0], global_step=step) for step in range(1, 1001)]
    drawn = costs.step_chart(run)
    assert drawn["title"] == "seconds of a step, mean of 9" and drawn["layers"][0]["path"].count("Z") == 112
    assert len(drawn["x_ticks"]) <= 8


def charts_bottom() -> float:
    return costs.HEIGHT - charts.BOTTOM


def test_memory_of_each_device_with_the_phases_behind_it(tmp_path):
    run = loaded(whole_run(tmp_path))
    host, first, other = costs.memory_charts(run)
    assert [host["title"], first["title"], other["title"]] == ["host, GB", "GPU 0, GiB", "GPU 10, GiB"]
    assert [layer["name"] for layer in first["layers"]] == ["engine", "trainer"] and first["most"] == "50"
    engine, trainer = (layer["path"] for layer in first["layers"])
    assert engine.count("Z") == trainer.count("Z") == 1  # no gap
    assert {layer["name"]: layer["path"].count("Z") for layer in first["behind"]} == {"rollout": 8, "train": 6}
    wide = {layer["name"]: columns(layer["path"]) for layer in first["behind"]}
    assert wide["rollout"][2][1] == wide["train"][0][0]  # six seconds each, in turns
    assert costs.peaks(run) == {
        "devices": ["host, GB", "GPU 0, GiB", "GPU 10, GiB"],
        "rows": [
            {"name": "rollout", "cells": ["4.0: engine 4.0", "40.0: engine 30.0, trainer 10.0", "5.0: engine 5.0"]},
            {"name": "train", "cells": ["4.0: engine 4.0", "50.0: engine 30.0, trainer 20.0", "5.0: engine 5.0"]},
            {"name": "outside a step", "cells": ["4.0: engine 4.0", "40.0: engine 30.0, trainer 10.0",
                                                 "5.0: engine 5.0"]},
        ],
    }  # fmt: skip
    text = Parsed(page_of(run.path)).text
    for piece in ("GPU 10, GiB", "50.0: engine 30.0, trainer 20.0", "outside a step", "behind:"):
        assert piece in text, piece


def test_a_long_run_is_drawn_twice_and_the_page_stays_small(tmp_path):
    path = whole_run(tmp_path)
    short = len(page_of(path))
    timeline(5000).write(path / TIMELINE_FILE)
    titles = [one["title"] for one in costs.memory_charts(loaded(path))]
    assert titles == [f"{device}{where}" for where in ("", ", the last minutes")
                      for device in ("host, GB", "GPU 0, GiB", "GPU 10, GiB")]  # fmt: skip
    assert len(page_of(path)) < short + 150_000


def test_a_pause_is_a_gap(tmp_path):
    path = whole_run(tmp_path)
    content = json.loads((path / TIMELINE_FILE).read_text())
    for point in content["whole"][10:]:
        point["time"] += 3600
    (path / TIMELINE_FILE).write_text(json.dumps(content))
    host, *_ = costs.memory_charts(loaded(path))
    assert host["layers"][0]["path"].count("Z") == 2


def test_a_run_of_before_these_numbers_reads_as_before(tmp_path):
    path = whole_run(tmp_path)
    (path / TIMELINE_FILE).unlink()
    new = ("tokens_per_second", "model_flops", "time_evaluation")
    old = [{k: v for k, v in r.items() if not k.startswith(new)} for r in read_jsonl(path / TRAINING_FILE)]
    (path / TRAINING_FILE).write_text(lines(old))
    run = loaded(path)
    assert costs.memory_charts(run) == [] and costs.peaks(run)["rows"] == [] and costs.tiles(run) == []
    assert [row["name"] for row in costs.times(run)["step"]] == ["rollout", "experience", "train", "sync", "other"]
    (path / TRAINING_FILE).write_text(lines([{"global_step": 1, "reward": 0.5}]))
    run = loaded(path)
    assert costs.step_chart(run) is None and costs.times(run)["step"] == []
    assert TIMELINE_FILE not in Parsed(page_of(path)).text


@pytest.mark.parametrize("odd", [None, 3, "x", {}, [3], [{}], [{"time": "x"}], {"train": 3}, {"": {"gpu_mib": [1]}}])
def test_a_timeline_of_another_shape_does_not_break_the_page(tmp_path, odd):
    path = whole_run(tmp_path)
    for key in ("whole", "recent", "peaks"):
        content = json.loads((path / TIMELINE_FILE).read_text()) | {key: odd}
        (path / TIMELINE_FILE).write_text(json.dumps(content))
        page_of(path)
