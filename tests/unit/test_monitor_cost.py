"""What the monitor says of time and money, and how its page looks at every width."""

import json
import re

import pytest
from monitor_runs import SPIKE, log, monitor, text, write_run

from rft.runs.monitor.forecast import PRICE, time_left
from rft.runs.monitor.progress import status
from rft.runs.monitor.state import read_state

PHASES = {"time_rollout_seconds": 4.0, "time_experience_seconds": 1.0, "time_train_seconds": 2.0,
          "time_sync_seconds": 0.5}  # fmt: skip
NUMBER = re.compile(r"[-+]?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?%?")


@pytest.fixture(autouse=True)
def no_places_from_outside(monkeypatch):
    for name in ("METRICS_LOG_DIR", "SPIKE_LOG_PATH", "COLUMNS", "LINES", PRICE):
        monkeypatch.delenv(name, raising=False)


def gpu_run(run, *options: str, steps: int = 6, seconds: float = 1800.0):
    """A run of 12 steps on GPUs; launched `seconds` ago."""
    write_run(run, steps=0)
    manifest = json.loads((run / "run.json").read_text())
    manifest["command"] += ["--actor_num_gpus_per_node", "2", "--vllm_num_engines", "3"]
    manifest["command"] += ["--init_kl_coef", "0", "--remote_rm_url", "r.py", *options]
    (run / "run.json").write_text(json.dumps(manifest | {"versions": {"vllm": "0.15.1"}}))
    (run / "phases.jsonl").write_text(json.dumps({"phase": "set-up", "seconds": seconds}) + "\n")
    for step in range(1, steps + 1):
        log(run, step, **PHASES, **({"time_evaluation_seconds": 20.0} if step in (1, 5) else {}))
        if step % 4 == 0:
            log(run, step, evaluation={"eval_ood_greedy_pass@1": 0.5})
    return run


def test_time_left_counts_evaluations_and_checkpoints(tmp_path):
    run = gpu_run(tmp_path / "run")  # 12 steps of 8 s, an evaluation of 20 s every 4
    assert time_left(read_state(run)) == (6 * 8 + 2 * 20, [])  # after steps 8 and 12
    log(run, 7, **PHASES)
    log(run, 8, **PHASES)
    assert time_left(read_state(run)) == (4 * 8 + 2 * 20, [])  # that after step 8 is under way
    log(run, 8, evaluation={"eval_ood_greedy_pass@1": 0.5})
    assert time_left(read_state(run)) == (4 * 8 + 20, [])
    saved = gpu_run(tmp_path / "saved", "--save_steps", "5", steps=4)
    assert time_left(read_state(saved)) == (8 * 8 + 2 * 20, ["2 checkpoints"])  # none was measured so far
    assert "about 1:44 left  without 2 checkpoints" in text(read_state(saved))
    log(saved, 5, **PHASES)
    log(saved, 6, **PHASES, time_checkpoint_seconds=30.0)
    assert time_left(read_state(saved)) == (6 * 8 + 2 * 20 + 30, [])
    assert time_left(read_state(gpu_run(tmp_path / "new", steps=0))) is None


def test_gpu_hours_cost_and_idle_time(tmp_path, monkeypatch):
    run = gpu_run(tmp_path / "run")  # 2 GPUs of the trainer and 3 of engines, for half an hour
    state = read_state(run)
    # Of 88 s: rollout 24 and evaluation 40 leave 2 of 5 GPUs idle, experience 6 and training 12 leave 3, other 3 all.
    assert "GPUs idle 45% of the time at least" in text(state)
    assert "2.5 GPU hours" in text(state) and ", cost " not in text(state)
    monkeypatch.setenv(PRICE, "4")
    assert "cost 10.00 so far, about 10.49 when trained" in text(read_state(run), 200)  # and 5 GPUs for 88 s
    with (run / "phases.jsonl").open("a") as stream:
        stream.write('{"phase": "grpo", "seconds": 1800.0}\n')
    ended = read_state(run)
    assert status(ended).ended and "5.0 GPU hours, cost 20.00\n" in text(ended, 200)
    shared = gpu_run(tmp_path / "shared", "--colocate_all_models", "--vllm_num_engines", "2")
    assert "GPUs idle 3% of the time at least" in text(read_state(shared))  # what no phase accounts for
    assert "1.0 GPU hours, cost 4.00 so far" in text(read_state(shared), 200)
    on_cpu = write_run(tmp_path / "cpu")
    assert "GPU hours" not in text(read_state(on_cpu))


@pytest.mark.parametrize("price", ["cheap", "-1", "nan", "inf"])
def test_what_is_no_price_is_refused(tmp_path, price):
    refused = monitor(write_run(tmp_path / "run"), "--once", **{PRICE: price})
    assert refused.returncode == 2 and f"found {PRICE}='{price}'; wanted the price" in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize("plain", [False, True], ids=["unicode", "ascii"])
def test_no_number_is_cut_at_any_width(tmp_path, monkeypatch, plain):
    """Every number of a narrow page is one of the widest page, or stands in a name that is marked as cut."""
    monkeypatch.setenv(PRICE, "3.25")
    run = gpu_run(tmp_path / "launcher" / "r", steps=11)
    log(run, 12, **PHASES, tokens_per_second_step=123456.7, model_flops_utilization=0.314, mismatch_abs_mean=0.0625)
    log(
        run, 12, evaluation={"eval_probe_set_200_ood_sampling_pass@16": 0.125, "eval_probe_set_200_ood_problems": 200.0}
    )
    (run / "spike_log.jsonl").write_text(json.dumps(SPIKE) + "\n")
    reason = {"global_step": 8, "rule": "ood_decline", "action": "watch", "reason": "0.125 of 200 after 0.375, 1e-5"}
    (run / "decisions.jsonl").write_text(json.dumps(reason) + "\n")
    after = {"mode": "greedy_pass@1", "greedy_pass@1": 0.957, "dataset": "heldout.jsonl", "n": 256}
    (run / "result.json").write_text(json.dumps({"after": after | {"interval95": [0.925, 0.976]}}))
    (run / "best.json").write_text('{"global_step": 8, "metric": "eval_ood_greedy_pass@1", "value": 0.8125}')
    (run / "memory.json").write_text('{"peak_gb": 123.4}')
    state = read_state(run)._replace(gpus=[["0", "98", "71234", "81559", "65"]] * 8, disk=(12345 * 10**8, 10**13))
    real = numbers(text(state, 400, plain=plain))
    must = {"0.0625", "0.125", "0.925", "0.976", "73.2", "0.8125", "123.4", "1234.5", "123,457", "71234", "31%"}
    for width in range(20, 201):
        shown = text(state, width, plain=plain)
        assert max(map(len, shown.splitlines())) <= width
        assert numbers(shown) <= real, width
        assert must <= numbers(shown), width


def numbers(page: str) -> set[str]:
    """The numbers of a page, without those in words that are marked as cut."""
    marked = [word for word in page.split() if re.search(r"…|\.\.", word)]
    assert not [word for word in marked if re.match(r"[-+]?\d", word)], "only names may be cut"
    words = [word for word in page.split() if word not in marked]
    return {found for word in words for found in NUMBER.findall(word)}
