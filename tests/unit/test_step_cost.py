"""Rates of a step against arithmetic by hand, phases and their shares, what ranks say of their GPUs."""

import json
import math
import types

import pytest
import torch

from benchmarks.checkpoint import PROJECTIONS, shape_config
from rft.hooks import metrics, phases, step_cost, trainer_devices
from rft.options.command import recorded
from rft.record import flops, step_phases
from rft.record.names import PHASE_FILE

H100 = "NVIDIA H100 80GB HBM3"
STATUS = {
    "time_rollout_seconds": 4.0, "time_experience_seconds": 2.0, "time_train_seconds": 5.0, "time_sync_seconds": 1.0,
    "time_step_seconds": 12.5, "trainer_gpus": 2.0, "device_peak_tflops": 989.0,
}  # fmt: skip


def sample(prompt: int, answer: int) -> types.SimpleNamespace:
    mask = torch.tensor([[0] * (prompt - 1) + [1] * answer])
    return types.SimpleNamespace(attention_mask=torch.ones(1, prompt + answer, dtype=torch.long), action_mask=mask)


def options(tmp_path, **more: object):
    (tmp_path / "config.json").write_text(json.dumps(shape_config("20b")))
    given = {"pretrain": tmp_path, "lora_rank": 32, "actor_num_gpus_per_node": 2, "vllm_num_engines": 3,
             "init_kl_coef": 0, "remote_rm_url": "r.py", "advantage_estimator": "group_norm", **more}  # fmt: skip
    words = [word for name, value in given.items() for word in (f"--{name}", *([] if value is True else [str(value)]))]
    return recorded(["python", "-m", "openrlhf.cli.train_ppo_ray", *words, "--target_modules", *PROJECTIONS])


SAMPLES = [sample(100, 924), sample(30, 70)]
CONFIG = shape_config("20b")


def test_rates_by_hand(tmp_path):
    found = step_cost.step_cost(options(tmp_path), SAMPLES, STATUS)
    train = sum(flops.training(CONFIG, [1024, 100], 994, 32, PROJECTIONS).values())
    forward = sum(flops.forward(CONFIG, [1024, 100], 994, 32, PROJECTIONS).values())
    assert found == pytest.approx({
        "tokens_per_second_step": 1124 / 12.5, "tokens_per_second_step_per_gpu": 1124 / 12.5 / 5,
        "tokens_per_second_rollout": 994 / 4, "tokens_per_second_rollout_per_gpu": 994 / 4 / 3,
        "tokens_per_second_experience": 1124 / 2, "tokens_per_second_experience_per_gpu": 1124 / 4,
        "tokens_per_second_train": 1124 / 5, "tokens_per_second_train_per_gpu": 1124 / 10,
        "tflops_train": train / 5e12, "tflops_experience": forward / 2e12,
        "model_flops_utilization": train / 5e12 / 1978, "model_flops_utilization_experience": forward / 2e12 / 1978,
    })  # fmt: skip


def test_epochs_and_the_reference_count(tmp_path):
    once = step_cost.step_cost(options(tmp_path), SAMPLES, STATUS)
    more = step_cost.step_cost(options(tmp_path, max_epochs=2, init_kl_coef=0.01), SAMPLES, STATUS)
    assert more["tflops_train"] == pytest.approx(2 * once["tflops_train"])
    assert more["tokens_per_second_train"] == pytest.approx(2 * once["tokens_per_second_train"])
    assert more["tokens_per_second_step"] == once["tokens_per_second_step"]
    adapters = flops.forward(CONFIG, [1024, 100], 994, 32, PROJECTIONS)["adapters"]
    assert more["tflops_experience"] == pytest.approx(2 * once["tflops_experience"] - adapters / 2e12)
    own = step_cost.step_cost(options(tmp_path, init_kl_coef=0.01, separate_reference_model=True), SAMPLES, STATUS)
    assert own["tflops_experience"] == once["tflops_experience"]
    assert own["tokens_per_second_step_per_gpu"] < once["tokens_per_second_step_per_gpu"]  # it has GPUs of its own


def test_colocated_engines_share_the_trainer_s_gpus(tmp_path):
    shared = options(tmp_path, vllm_num_engines=2, colocate_all_models=True)
    found = step_cost.step_cost(shared, SAMPLES, STATUS)
    assert found["tokens_per_second_step_per_gpu"] == pytest.approx(1124 / 12.5 / 2)


def test_what_is_not_known_is_absent(tmp_path):
    args = options(tmp_path)
    unknown_device = {name: value for name, value in STATUS.items() if name != "device_peak_tflops"}
    found = step_cost.step_cost(args, SAMPLES, unknown_device)
    assert "tflops_train" in found and "tokens_per_second_train_per_gpu" in found
    assert not [name for name in found if "utilization" in name]
    cpu = step_cost.step_cost(args, SAMPLES, unknown_device | {"trainer_gpus": 0.0})
    assert "tflops_train" in cpu and not [name for name in cpu if name.endswith("_per_gpu")]
    frozen = {name: value for name, value in STATUS.items() if name != "trainer_gpus"}
    assert {name.split("_")[-1] for name in step_cost.step_cost(args, SAMPLES, frozen)} == {
        "step", "rollout", "experience",
    }  # fmt: skip
    later = {name: value for name, value in STATUS.items() if name != "time_rollout_seconds"}
    assert not [name for name in step_cost.step_cost(args, SAMPLES, later) if "_step" in name or "_rollout" in name]
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "deepseek_v3"}')
    found = step_cost.step_cost(options(tmp_path, pretrain=other), SAMPLES, STATUS)
    assert {name.split("_")[0] for name in found} == {"tokens"}


def test_ranks_say_the_most_memory_and_the_slowest_device():
    ranks = [(H100, {"memory_train_gb": 30.0}), ("NVIDIA A100-SXM4-80GB", {"memory_train_gb": 41.5})]
    assert trainer_devices.metrics(ranks) == {
        "trainer_gpus": 2, "device_peak_tflops": 312, "memory_train_gb": 41.5,
    }  # fmt: skip
    assert trainer_devices.metrics([(H100, {}), ("NVIDIA Something", {})]) == {"trainer_gpus": 2}
    trainer_devices.end_phase("train")  # here is no GPU
    assert trainer_devices.metrics([trainer_devices.mine()]) == {"trainer_gpus": 0}


def test_evaluation_and_checkpoint_lie_between_two_steps(monkeypatch, tmp_path):
    monkeypatch.setenv("RFT_RUN_DIR", str(tmp_path))
    told = []
    phases.finish_step()
    for name in ("evaluation", "rollout", "train"):
        phases.timed(name, lambda: told.append((tmp_path / PHASE_FILE).read_text()))()
    assert told == ["evaluation\n", "rollout\n", "train\n"] and (tmp_path / PHASE_FILE).read_text() == "\n"
    found = phases.finish_step()
    assert set(found) == {f"time_{name}_seconds" for name in ("evaluation", "rollout", "train", "step")}
    monkeypatch.setenv("RFT_RUN_DIR", str(tmp_path / "elsewhere"))
    phases.timed("rollout", lambda: None)()
    assert not (tmp_path / "elsewhere").exists()
    phases.finish_step()


def test_evaluations_do_not_lengthen_the_step(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(phases.time, "perf_counter", lambda: float(next(clock)))
    phases.finish_step()  # the clock stands at 1
    phases.timed("evaluation", lambda: None)()  # 2 to 3
    phases.timed("rollout", lambda: None)()  # 4 to 5
    assert phases.finish_step() == {
        "time_evaluation_seconds": 1.0, "time_rollout_seconds": 1.0, "time_step_seconds": 2.0,
    }  # fmt: skip


def test_shares_of_phases():
    line = json.loads(metrics.json_line(1, STATUS | {"time_evaluation_seconds": 7.5}))
    assert step_phases.seconds(line) == {
        "rollout": 4.0, "experience": 2.0, "train": 5.0, "sync": 1.0, "evaluation": 7.5, "other": 0.5,
    }  # fmt: skip
    found = step_phases.shares([line, STATUS])
    assert found["rollout"] == 8 / 32.5 and sum(found.values()) == pytest.approx(1)
    assert list(found) == [name for name in step_phases.PHASES if name in found]
    old = {"global_step": 1, "time_step_seconds": 8.0, "time_train_seconds": 6.0}
    assert step_phases.shares([old]) == {"train": 0.75, "other": 0.25}
    assert step_phases.shares([]) == step_phases.shares([{"time_step_seconds": 1.0}]) == {}
    for odd in (None, "12", True, math.inf, -1, []):
        assert step_phases.seconds({"time_step_seconds": odd, "time_train_seconds": 1.0}) == {}
        assert step_phases.seconds({"time_step_seconds": 2.0, "time_train_seconds": odd}) == {}
