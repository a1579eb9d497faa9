"""The monitor on runs in every condition: whole, torn, empty, growing, ended; on every kind of terminal."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from monitor_runs import SPIKE, log, monitor, text, write_run

from rft.hooks.metrics import rewind
from rft.options.command import recorded
from rft.runs.find import find_run
from rft.runs.monitor.metrics import bounds, spark
from rft.runs.monitor.progress import clock, status, total_steps
from rft.runs.monitor.state import follow, last_spikes, read_state


@pytest.fixture(autouse=True)
def no_places_from_outside(monkeypatch):
    for name in ("METRICS_LOG_DIR", "SPIKE_LOG_PATH", "COLUMNS", "LINES", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


def test_page_says_how_far_the_run_is_and_what_is_out_of_range(tmp_path):
    write_run(tmp_path / "launcher" / "first", correctness=0.99, grad_norm=float("nan"))
    state = read_state(tmp_path / "launcher" / "first")
    shown = text(state)
    assert shown.startswith("launcher/first   training\n")
    assert "step 6 of 12" in shown and "50%" in shown and "8.0 s a step" in shown and "about 48 s left" in shown
    rows = {line[2:].split(" ")[0]: line for line in shown.splitlines() if line[:1] in "!~+ "}
    assert rows["correctness"].startswith("!") and "0.99" in rows["correctness"] and "0.02 to 0.98" in shown
    assert rows["grad_norm"].startswith("!") and "not finite" in rows["grad_norm"]
    assert rows["grad_norm"].rstrip().endswith("▁▁▁▁▁x")
    assert rows["has_boxed"].startswith("+") and "≥ 0.9" in rows["has_boxed"]
    assert rows["entropy_mean"].startswith(" ")  # no bound, no verdict
    assert rows["reward_mean"].rstrip().endswith("▁▂▄▅▇█")
    assert "sync_checksum32" not in shown


def test_page_says_where_a_step_s_time_goes(tmp_path):
    run = write_run(tmp_path / "run", steps=2)  # as of before the phases were measured
    assert "rollout" not in text(read_state(run)) and "tokens/s" not in text(read_state(run))
    phases = {"time_rollout_seconds": 4.0, "time_train_seconds": 3.0, "time_evaluation_seconds": 2.0}  # of 8 + 2
    log(run, 3, **phases, tokens_per_second_step=12345.6)
    assert "  40% rollout, 30% train, 20% evaluation, 10% other; 12,346 tokens/s\n" in text(read_state(run))
    log(run, 4, **phases, tokens_per_second_step=12345.6, tokens_per_second_step_per_gpu=1543.2,
        model_flops_utilization=0.314)  # fmt: skip
    lines = [line.rstrip() for line in text(read_state(run), width=60).splitlines()]
    assert "  12,346 tokens/s, 1,543 a GPU, 31% of peak FLOPs" in lines
    assert any(line.startswith("  tokens_per_second_step") for line in lines)
    assert any(line.startswith("  model_flops_utilization") for line in lines)


def test_value_out_of_range_a_few_steps_ago_keeps_a_mark(tmp_path):
    run = write_run(tmp_path / "run", steps=2, has_boxed=0.5)
    log(run, 3)
    assert "\n~ has_boxed" in text(read_state(run))


def test_evaluations_have_an_interval_where_it_can_be_computed(tmp_path):
    state = read_state(write_run(tmp_path / "run", steps=8))
    lines = {line.split()[0]: line for line in text(state).splitlines() if line.startswith("  ")}
    assert "0.800  step 8    0.490 to 0.943, n=10" in lines["sums_pass1"]  # Wilson, 8 of 10
    assert "0.500  step 8    0.215 to 0.785, n=8" in lines["ood_greedy_pass@1"]  # Wilson, 4 of 8
    several = state._replace(options=recorded(["openrlhf.cli.train_ppo_ray", "--eval_n_samples_per_prompt", "4"]))
    lines = {line.split()[0]: line for line in text(several).splitlines() if line.startswith("  ")}
    assert " to " not in lines["sums_pass1"]  # a mean over samples of a problem is no count of problems
    assert " to " in lines["ood_greedy_pass@1"]


def test_number_of_problems_is_taken_from_the_evaluation_itself(tmp_path):
    run = write_run(tmp_path / "run", steps=4)
    values = {"eval_probe_set_200_ood_greedy_pass@1": 0.25, "eval_probe_set_200_ood_problems": 200.0}
    values |= {"eval_aime_sampling_pass@8": 0.5, "eval_aime_sampling_avg@8": 0.25, "eval_aime_problems": 18.0}
    log(run, 8, evaluation=values)
    lines = {line.split()[0]: line for line in text(read_state(run)).splitlines() if line.startswith("  ")}
    assert "0.250  step 8    0.195 to 0.314, n=200" in lines["probe_set_200_ood_greedy_pass@1"]  # Wilson, 50 of 200
    assert "0.290 to 0.710, n=18" in lines["aime_sampling_pass@8"]  # Wilson, 9 of 18
    assert " to " not in lines["aime_sampling_avg@8"]  # a mean over samples is no count of problems
    assert not any("problems" in name for name in lines)


@pytest.mark.parametrize("width", [20, 40, 79, 80, 120, 150, 151, 220])
@pytest.mark.parametrize("height", [None, 10, 24, 60])
def test_no_line_is_wider_than_the_terminal(tmp_path, width, height):
    run = write_run(tmp_path / ("long" * 20) / ("name" * 20), steps=11)
    (run / "spike_log.jsonl").write_text(json.dumps(SPIKE) + "\n")
    reason = {"global_step": 8, "rule": "ood", "action": "watch", "reason": "fell " * 40, "numbers": {}}
    (run / "decisions.jsonl").write_text(json.dumps(reason) + "\n")
    (run / "train.log").write_text("words " * 100)
    state = read_state(run)._replace(gpus=[["0", "98", "71234", "81559", "65"]] * 8)
    lines = text(state, width, height).splitlines()
    assert max(map(len, lines)) <= width
    if height is not None and width < 150:
        assert len(lines) <= height


def test_low_terminal_keeps_what_is_out_of_range(tmp_path):
    state = read_state(write_run(tmp_path / "run", high_reward_but_wrong=0.25))
    shown = text(state, 80, 24)
    assert "\n! high_reward_but_wrong" in shown and "\n+ correctness" in shown
    assert "more metrics: --once, or a taller terminal" in shown
    assert len(shown.splitlines()) <= 24
    assert "more metrics" not in text(state, 80)


def test_steps_of_the_whole_run(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}\n" * 10)
    (tmp_path / "b.jsonl").write_text("{}\n" * 5 + "{}")

    def steps(*options):
        return total_steps(recorded(["--input=x", "--", "python", "-m", "openrlhf.cli.train_ppo_ray", *options]))

    a, both = ("--prompt_data", f"{tmp_path}/a.jsonl"), ("--prompt_data", f"{tmp_path}/a.jsonl, {tmp_path}/b.jsonl")
    assert steps(*a, "--rollout_batch_size", "3") == 3  # the last, not full batch is dropped
    assert steps(*a, "--rollout_batch_size", "3", "--num_episodes", "4") == 12
    assert steps(*both, "--rollout_batch_size", "4") == 4
    assert steps(*both, "--rollout_batch_size", "4", "--max_samples", "9") == 2
    assert steps(*a, "--rollout_batch_size", "2", "--rollout_batch_size", "5") == 2  # the last one counts
    assert steps(*a) == 0  # OpenRLHF's default batch of 1024 prompts is never full
    assert steps(*both, "--prompt_data_probs", "0.5,0.5", "--rollout_batch_size", "4") is None
    assert steps("--prompt_data", "hub/dataset") is None
    assert steps("--prompt_data", str(tmp_path / "gone.jsonl")) is None
    assert steps() is None


def test_status_of_a_run_from_its_beginning_to_its_end(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    assert status(read_state(run)).word == "waiting"
    assert "no step yet; no process of it on this machine" in text(read_state(run))
    assert "METRICS_LOG_DIR" in text(read_state(run))
    run.rmdir()
    write_run(run, steps=0)
    assert status(read_state(run)).word == "starting"
    manifest = (run / "run.json").read_text()
    (run / "run.json").unlink()
    assert status(read_state(run)).word == "preparing"
    (run / "run.json").write_text(manifest)
    for step in range(1, 13):
        log(run, step)
        state = read_state(run)
        assert status(state).word == {4: "evaluating", 8: "evaluating", 12: "trained"}.get(step, "training")
        if step == 4:
            log(run, step, evaluation={"eval_sums_pass1": 0.5})
            assert status(read_state(run)).word == "training"
    assert status(state._replace(processes=3)) == ("trained", "good", "all steps done", False)
    with (run / "phases.jsonl").open("a") as stream:
        stream.write('{"phase": "grpo", "seconds": 100.0}\n')
    state = read_state(run)
    assert status(state) == ("finished", "good", "", True)
    assert "trained for 1:40" in text(state) and "left" not in text(state)
    assert status(state._replace(processes=3)).word == "after training"
    manifest = {**state.manifest, "stopped": {"global_step": 9, "rule": "ood", "reason": "fell twice"}}
    assert "stopped\n  at step 9 by the rule ood: fell twice\n" in text(state._replace(manifest=manifest))


def test_run_that_died_or_hangs_is_said_so(tmp_path):
    run = write_run(tmp_path / "run", steps=6)
    state = read_state(run)
    assert status(state._replace(now=state.now + 59)).word == "training"
    stalled = state._replace(now=state.now + 3600)
    assert status(stalled).word == "stalled"
    assert "no line for 1:00:00; a step takes 8.0 s; no process of it on this machine" in text(stalled)
    assert "no process" not in text(stalled._replace(processes=2))
    slow = state.training._replace(records=[{**r, "time_step_seconds": 900.0} for r in state.training.records])
    assert status(stalled._replace(training=slow)).word == "training"  # a step of 15 minutes may last an hour
    every_two = recorded(["openrlhf.cli.train_ppo_ray", "--eval_steps", "2"])
    assert status(state._replace(now=state.now + 200, options=every_two)).word == "evaluating"
    assert status(state._replace(now=state.now + 300, options=every_two)).word == "stalled"

    (run / "train.log").write_text("step\nRuntimeError: \x1b[31mreward function raised\n")
    with (run / "phases.jsonl").open("a") as stream:
        stream.write('{"phase": "grpo", "seconds": 100.0}\n')
    state = read_state(run)
    assert status(state) == ("ended early", "bad", "after step 6 of 12; see train.log", True)
    assert "RuntimeError: ?[31mreward function raised" in text(state)
    later = state._replace(
        training=state.training._replace(modified=state.phases.modified + 3600), now=state.now + 3600
    )
    assert status(later).word == "training"  # taken up again with --load_checkpoint


def test_run_that_never_trained_is_ended_once_nothing_of_it_lives(tmp_path):
    run = write_run(tmp_path / "run", steps=0)
    (run / "run.json").unlink()
    state = read_state(run)._replace(processes=0)
    assert status(state._replace(now=state.now + 50)).word == "preparing"
    late = state._replace(now=state.now + 70)
    assert status(late)[0] == "ended early" and status(late).ended
    assert "before the first step; last finished: set-up; no process of it on this machine" in text(late)
    assert status(late._replace(processes=1)).word == "preparing"
    assert status(late._replace(log_modified=late.now)).word == "preparing"


def test_file_is_read_on_from_where_it_was(tmp_path):
    file = tmp_path / "m.jsonl"
    file.write_bytes(b'{"global_step": 1, "reward": 0.5}\n{"global_step": 2, "rew')
    first = follow(file, "global_step", None, frozenset({"global_step", "reward"}))
    assert first.records == [{"global_step": 1, "reward": 0.5}] and first.broken == 0
    with file.open("ab") as stream:
        stream.write(b'ard": NaN}\nbroken\n[1]\n{"global_step": "x"}\n{"reward": 1}\n\xff\n{"global_step": 3}\n')
    second = follow(file, "global_step", first, frozenset({"global_step", "reward"}))
    assert second.records[1:] == [{"global_step": 2, "reward": None}, {"global_step": 3}]
    assert second.broken == 5 and second.offset == file.stat().st_size
    assert len(first.records) == 1  # the earlier state is left as it was
    file.write_bytes(b'{"global_step": 7}\n')
    assert [r["global_step"] for r in follow(file, "global_step", second).records] == [7]
    longer = file.with_name("longer")
    longer.write_bytes(b"".join(b'{"global_step": %d}\n' % step for step in range(50)))
    longer.replace(file)  # as a resumed run replaces it
    assert len(follow(file, "global_step", second).records) == 50
    file.unlink()
    assert follow(file, "global_step", second) == ([], 0, None, 0, None)


def test_resumed_run_is_read_anew_and_a_torn_line_inside_is_counted(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", steps=8)
    before = read_state(run)
    monkeypatch.setenv("METRICS_LOG_DIR", str(run))
    rewind(5)
    with (run / "eval_metrics.jsonl").open("a") as stream:
        stream.write('{"global_step": 8, "ev{"global_step": 8, "eval_sums_pass1": 0.5}\n')
    log(run, 6)
    state = read_state(run, before)
    assert [r["global_step"] for r in state.training.records] == [1, 2, 3, 4, 5, 6]
    assert "~ eval_metrics.jsonl: 1 lines are not complete records" in text(state)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    run = write_run(tmp_path_factory.mktemp("runs") / "whole", steps=3)
    decision = {"global_step": 2, "rule": "ood", "action": "watch", "reason": "fällt", "numbers": {"a": 1}}
    (run / "decisions.jsonl").write_text(json.dumps(decision, ensure_ascii=False) + "\n", encoding="utf-8")
    (run / "spike_log.jsonl").write_text(json.dumps(SPIKE, ensure_ascii=False) + "\n", encoding="utf-8")
    (run / "eval_metrics.jsonl").write_text('{"global_step": 2, "eval_sums_pass1": 0.5}\n')
    after = {
        "dataset": "heldout.jsonl",
        "mode": "greedy_pass@1",
        "greedy_pass@1": 0.5,
        "interval95": [0.2, 0.8],
        "n": 8,
    }
    (run / "result.json").write_text(json.dumps({"before": after, "after": after}))
    (run / "memory.json").write_text('{"peak_gb": 6.6, "processes": 18}\n')
    best = {"global_step": 2, "metric": "eval_sums_pass1", "value": 0.5, "checkpoint": "/somewhere/best_step2_hf"}
    (run / "best.json").write_text(json.dumps(best))
    files = sorted(file.name for file in run.iterdir() if file.is_file())
    return run, {name: (run / name).read_bytes() for name in files}


@settings(max_examples=100)
@given(data=st.data())
def test_every_prefix_of_every_file_is_a_page(whole_run, data):
    run, contents = whole_run
    name = data.draw(st.sampled_from(sorted(contents)))
    cut = data.draw(st.integers(0, len(contents[name])))
    more = data.draw(st.sampled_from([b"", b"\0\0\0", b"\n", contents[name][: contents[name].find(b"\n") + 1]]))
    (run / name).write_bytes(contents[name][:cut] + more)
    try:
        state = read_state(run)
        lines = text(state, 80).splitlines()
        assert max(map(len, lines)) <= 80 and lines[0].startswith(f"{run.parent.name}/whole"[:80])
        assert text(read_state(run, state), 80, 24)
    finally:
        (run / name).write_bytes(contents[name])


def test_what_a_model_wrote_does_not_steer_the_terminal(whole_run):
    shown = text(read_state(whole_run[0]))
    assert "\x1b" not in shown and r"worst token 'é\x1b[2J'" in shown and "spikes/step_3_rank_0" in shown
    assert "best: step 2, sums_pass1 0.5, best_step2_hf\n" in shown
    assert "step 2  watch  ood  fällt" in shown


def test_last_spikes_come_one_an_optimizer_step(tmp_path):
    log = tmp_path / "spike_log.jsonl"
    rows = [{**SPIKE, "optimizer_step": step, "rank": rank} for step in range(1, 6) for rank in range(2)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"global_step": 9, "opt')
    assert [spike["optimizer_step"] for spike in last_spikes(log)] == [5, 4, 3]
    assert last_spikes(tmp_path / "absent.jsonl") == []


def test_plain_terminals_get_ascii(tmp_path):
    run = write_run(tmp_path / "run", steps=8)
    shown = text(read_state(run), 60, plain=True)
    assert shown.isascii() and ">= 0.9" in shown and "#" in shown
    assert monitor(run, TERM="linux").stdout.isascii()
    latin = monitor(run, PYTHONIOENCODING="latin-1")
    assert latin.returncode == 0 and "step 8 of 12" in latin.stdout


def test_spark_line_keeps_extremes_of_many_points():
    line = spark([0.5] * 5000 + [1e3] + [0.5] * 5000, 40, "grad_norm")
    assert line.plain == "▁" * 19 + "█" + "▁" * 20 or line.plain.count("█") == 1
    assert [line.plain[s.start : s.end] for s in line.spans if s.style == "red"] == ["█"]
    assert spark([], 10).plain == "" and spark([1.0], -3).plain == "" and spark([2.0, 2.0], 9).plain == "▁▁"
    assert spark([None, None], 9).plain == "xx"
    assert bounds("advantage_std") == "> 0" and bounds("grad_norm") == "0 to 50" and bounds("truncated") == "≤ 0.5"
    assert [clock(s) for s in (0.25, 59.6, 61, 3723, 97445)] == ["0.2 s", "60 s", "1:01", "1:02:03", "1 d 03:04"]


def test_newest_run_of_a_folder_is_found(tmp_path):
    old, new = write_run(tmp_path / "runs" / "a" / "2"), write_run(tmp_path / "runs" / "a" / "1")
    manifest = json.loads((new / "run.json").read_text())
    (new / "run.json").write_text(json.dumps({**manifest, "started": "2026-11-22T10:00:00+00:00"}))
    assert find_run(tmp_path / "runs" / "a") == new == find_run(tmp_path / "runs")
    assert find_run(old) == old
    (tmp_path / "empty").mkdir()
    assert find_run(tmp_path / "empty") == tmp_path / "empty"
    with pytest.raises(ValueError, match=r"found no run in .*data"):
        find_run(old / "data")
    answer = monitor(tmp_path / "absent")
    assert answer.returncode == 2 and answer.stderr.startswith("error: found no directory") and not answer.stdout
    assert monitor(old, "--interval", "0").returncode == 2


def test_metrics_may_be_elsewhere(tmp_path):
    run = write_run(tmp_path / "run", metrics=tmp_path / "elsewhere")
    assert "step 0 of 12" in monitor(run, "--once").stdout
    assert "step 6 of 12" in monitor(run, "--once", METRICS_LOG_DIR=str(tmp_path / "elsewhere")).stdout


def test_gpus_are_listed_and_a_driver_that_hangs_is_named(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho '0, 98, 71234, 81559, 65'\necho '1, [N/A], 0, 81559, 30'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    run = write_run(tmp_path / "run")
    shown = text(read_state(run), 80)
    assert "GPU 0  98%  71234 of 81559 MiB 65 C" in shown and "GPU 1 [N/A]%" in shown
    program.write_text("#!/bin/sh\nexit 9\n")
    assert "! nvidia-smi ended with status 9" in text(read_state(run))
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr("rft.runs.monitor.state.GPU_SECONDS", 0.2)
    assert "! nvidia-smi did not answer within 0.2 s" in text(read_state(run))
