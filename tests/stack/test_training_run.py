"""One real GRPO run, by the launcher that users call, at a fraction of its length and with two ZeRO-3 ranks."""

import inspect
import json
import math
import os
import re
import subprocess
import threading
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import float32_truth
import pytest
import torch
from listeners import is_beyond, listening
from metric_table import metric_sources
from safetensors.torch import load_file

from rft.hooks.saved_adapter import base_model_of, read_adapter
from rft.problems import read_problems
from rft.record import flops
from rft.record.environment import stack_name
from rft.record.names import CLOCKS, TRAINING_FILE
from rft.record.readers import read_jsonl
from rft.record.samples import EVALUATION, TRAINING, read_samples, sample_file, sample_files
from rft.runs.memory import marked_processes
from rft.serving.engine import open_engine, sync_engine

pytestmark = pytest.mark.stack
ROOT = Path(__file__).resolve().parents[2]
STEPS, PROMPTS_A_STEP = 3, 32
LEFT_OUT = "RFT_PATCHES_LEFT_OUT" in os.environ  # set by tests/patches/shadow.py


def launch(run_dir: Path, *overrides: str) -> subprocess.CompletedProcess:
    of_the_caller = ("RAY_", "VLLM_", "OMP_", "METRICS_LOG_DIR", "SAMPLES_LOG_DIR", "SPIKE_", "WANDB_", "DRY_RUN")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(of_the_caller)}
    environment |= {"RUN_DIR": str(run_dir), "SEED": "0", "RFT_STACK": stack_name()}
    environment |= {"WANDB_MODE": "offline", "WANDB_DIR": str(run_dir.parent), "WANDB_SILENT": "true"}
    environment |= {"CACHE_ROOT": str(own_cache(run_dir.parent))}
    if LEFT_OUT:
        environment["PREFLIGHT"] = "0"  # it would refuse such a tree
        with (ROOT / "launch/pipeline.sh").open("a") as script:  # a checkout of its own, where only training counts
            script.write("evaluate() { :; }\nmeasure_after() { :; }\n")
    command = ["bash", "launch/train_grpo_tiny.sh", *overrides]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as process:
        try:
            with listeners_kept(run_dir):
                out, err = process.communicate(timeout=1500)
        except subprocess.TimeoutExpired:
            process.terminate()  # the launcher stops what it started; a SIGKILL would leave it
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def own_cache(folder: Path) -> Path:
    """A cache without evaluations: an earlier run of these tests drew the same samples, and then no engine starts."""
    shared = ROOT / ".cache/rft/warmstart"
    shared.mkdir(parents=True, exist_ok=True)
    (folder / "cache").mkdir()
    (folder / "cache/warmstart").symlink_to(shared)
    return folder / "cache"


@contextmanager
def listeners_kept(run_dir: Path):
    """Every second, look at what the run's processes listen on; all that was seen is in `<run_dir>.listeners`."""
    seen, ended = set(), threading.Event()

    def look() -> None:
        while not ended.wait(1):
            seen.update(listening(run_dir))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        run_dir.with_suffix(".listeners").write_text(json.dumps(sorted(seen)))


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory):
    """The run directory of a finished short run."""
    path = tmp_path_factory.mktemp("runs") / "train_grpo_tiny"
    samples = str(STEPS * PROMPTS_A_STEP)
    trackers = ("--use_wandb", "offline", "--use_tensorboard", str(path.parent), "--wandb_run_name", "tensorboard")
    # A reference policy without a second model: the launcher's three logical devices have no room for one.
    options = ("--actor_num_gpus_per_node", "2", "--eval_steps", "3", "--save_steps", "2", "--init_kl_coef", "0.001")
    done = launch(path, "--max_samples", samples, *options, *trackers)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return path


def test_result_states_before_after_seconds_memory_and_fingerprints(run_dir):
    result = json.loads((run_dir / "result.json").read_text())
    for name in ("before", "after"):
        assert 0 <= result[name]["greedy_pass@1"] <= 1
        assert result[name]["n"] >= 200
    assert result["steps"] == STEPS
    assert {"set-up", "warm start", "grpo"} <= set(result["seconds"])
    assert 1 < result["peak_gb"] < 12
    assert result["tokens_per_second_step_median"] > 0 and result["model_flops_utilization_median"] is None
    assert sum(result["step_shares"].values()) == pytest.approx(1)
    assert all(len(tree_id) == 16 for tree_id in result["tree_id"].values())
    assert (run_dir / "curves.png").stat().st_size > 10_000
    assert "before" in (run_dir / "evals.html").read_text()
    manifest = json.loads((run_dir / "run.json").read_text())
    assert manifest["tree_id"] == result["tree_id"]
    assert {Path(place).name for place in manifest["inputs"]} == {"model", "data"}


def test_memory_of_each_process_is_measured_over_the_run_and_drawn(run_dir):
    timeline = json.loads((run_dir / "memory_timeline.json").read_text())
    assert 0 < len(timeline["whole"]) <= 1000
    assert {role for point in timeline["whole"] for role in point["host_gb"]} >= {
        "trainer",
        "engine",
        "controller",
        "driver",
    }
    assert all(point["gpu_mib"] == {} for point in timeline["whole"])  # the CPU stack
    phases = {name for point in timeline["whole"] for name in point["phases"]}
    assert "" in phases and phases & {"rollout", "experience", "train", "sync", "evaluation"}
    assert phases <= {"", "rollout", "experience", "train", "sync", "evaluation", "checkpoint", "samples"}
    result = json.loads((run_dir / "result.json").read_text())
    assert max(sum(held["host_gb"].values()) for held in timeline["peaks"].values()) >= result["peak_gb"] - 0.1
    assert not (run_dir / "phase").exists()
    page = (run_dir / "report.html").read_text()
    assert 'aria-label="host, GB"' in page and 'aria-label="seconds of a step"' in page


def test_nothing_listens_beyond_the_loopback(run_dir):
    """From the first evaluation to the last, with two trainer ranks and an engine under Ray."""
    seen = json.loads(run_dir.with_suffix(".listeners").read_text())
    who = " ".join(process for _, process in seen)
    for process in ("gcs_server", "ray.util.client.server", "PolicyModelActor", "VLLM::EngineCore", "eval_posthoc.py"):
        assert process in who, seen
    assert [found for found in seen if is_beyond(found[0])] == []


def test_evaluation_in_the_loop_agrees_with_the_one_of_the_saved_adapter(run_dir):
    loop = json.loads((run_dir / "result.json").read_text())["loop"]
    assert loop["problems"] == 256, "the whole held-out set, whatever --max_samples"
    differences = [text for text in loop["differences"] if "not evaluated in training" not in text]
    assert all(": other responses, from character" in text for text in differences)
    float32_truth.assert_only_rounding_parts_evaluations(run_dir, STEPS)


def test_metrics_reach_the_jsonl_file(run_dir):
    records = read_jsonl(run_dir / TRAINING_FILE)
    assert [r["global_step"] for r in records] == list(range(1, STEPS + 1))
    for record in records:
        numbers = [value for name, value in record.items() if name != "time"]
        assert all(value is None or math.isfinite(value) for value in numbers)
        assert record["sync_layers"] == 8
        assert record["sync_adapter_version"] == record["global_step"]
        assert record["adapter_version"] == record["global_step"] - 1
        assert record["has_boxed"] > 0.5
    evaluations = read_jsonl(run_dir / "eval_metrics.jsonl")
    assert [r["global_step"] for r in evaluations] == [0, STEPS]
    for record in evaluations:
        assert record["eval_heldout_problems"] == 256
        assert 0 <= record["eval_heldout_greedy_pass@1"] <= 1
    best = json.loads((run_dir / "best.json").read_text())
    values = [record["eval_heldout_greedy_pass@1"] for record in evaluations]
    assert best["value"] == max(values) and best["global_step"] == (STEPS if values[1] > values[0] else 0)
    assert not best["checkpoint"] or len(load_file(Path(best["checkpoint"], "adapter_model.safetensors"))) == 16


def test_every_metric_is_documented_with_unit_source_and_range(run_dir):
    sources = metric_sources()
    documented = set(sources)
    written = {name for record in read_jsonl(run_dir / TRAINING_FILE) for name in record}
    assert written - documented == set()
    # What this run cannot write: each needs an option that it does not use.
    corrections = {"vllm_kl", "correction_weight_mean", "correction_truncated_share", "correction_masked_share"}
    rates = {f"tokens_per_second_{phase}_per_gpu" for phase in ("step", "rollout", "experience", "train")}
    on_gpus = rates | {"memory_experience_gb", "memory_train_gb", "device_peak_tflops"}
    on_gpus |= {"model_flops_utilization", "model_flops_utilization_experience"}
    of_a_task = r"reward_func_\w+|rft/agents/executor|rft/hooks/turn_metrics|rft/hooks/sft_run"
    tasks = {name: re.findall(of_a_task, source) for name, source in sources.items()}
    of_others = {name for name, found in tasks.items() if found and "reward_func_em" not in found}
    of_later_releases = {name for name in sources if name.startswith(("rollout/", "timing/"))}
    optional = corrections | on_gpus | of_others | of_later_releases | {"dynamic_filtering_pass_rate"}
    assert documented - written - optional == set()


def steps_with(run_dir: Path, *names: str) -> list[dict]:
    """The metrics of each step, which must have these."""
    records = read_jsonl(run_dir / TRAINING_FILE)
    assert [name for record in records for name in names if name not in record] == []
    return records


def test_every_line_says_when_it_was_written(run_dir):
    begin = datetime.fromisoformat(json.loads((run_dir / "run.json").read_text())["started"])
    for file in (TRAINING_FILE, "eval_metrics.jsonl"):
        records = read_jsonl(run_dir / file)
        elapsed = [record["elapsed_seconds"] for record in records]
        times = [datetime.fromisoformat(record["time"]) for record in records]
        assert elapsed == sorted(elapsed) and elapsed[0] > 0
        assert times == sorted(times) and times[0] >= begin and times[0].utcoffset().total_seconds() == 0


def test_mismatch_between_rollout_and_trainer_is_always_measured(run_dir):
    for record in steps_with(run_dir, "mismatch_abs_mean", "mismatch_abs_p99", "mismatch_kl"):
        assert 0 < record["mismatch_abs_mean"] < 0.02  # the same weights, two implementations in bf16
        assert record["mismatch_abs_mean"] < record["mismatch_abs_p99"] < 0.2
        assert 0 <= record["mismatch_kl"] < 1e-3


def test_step_metrics_are_measured(run_dir):
    for record in steps_with(run_dir, "grad_norm_max", "advantage_min", "entropy_p10", "log_ratio_min", "ratio_max"):
        assert record["grad_norm_max"] >= record["grad_norm"] > 0
        assert record["advantage_min"] < record["advantage_mean"] < record["advantage_max"]
        assert record["entropy_p10"] <= record["entropy_mean"]
        assert record["log_ratio_min"] <= 0 <= record["log_ratio_max"] == record["log_ratio_raw_max"]
        assert record["ratio_max"] == pytest.approx(math.exp(record["log_ratio_max"]))
        assert record["tokens_in_batch"] == pytest.approx(record["response_length"] * PROMPTS_A_STEP * 8)


def test_rewards_by_group_and_phase_times_are_measured(run_dir):
    for record in steps_with(run_dir, "reward_mean", "group_mixed_share", "time_rollout_seconds", "time_step_seconds"):
        assert record["reward_mean"] == pytest.approx(record["reward"])
        assert 0 < record["group_mixed_share"] == pytest.approx(1 - record["group_zero_variance_share"])
        assert record["high_reward_but_wrong"] == 0
        phases = [record[f"time_{phase}_seconds"] for phase in ("rollout", "experience", "train", "sync")]
        assert min(phases) > 0
        assert sum(phases) <= record["time_step_seconds"]


def test_cost_of_a_step_is_measured(run_dir):
    """On a CPU: tokens a second and the model's arithmetic, but no share of a GPU's peak, and no rate a GPU."""
    phases = ("step", "rollout", "experience", "train")
    rates = {phase: f"tokens_per_second_{phase}" for phase in phases}
    config = json.loads((run_dir / "model" / "config.json").read_text())
    for record in steps_with(run_dir, *rates.values(), "tflops_train", "tflops_experience"):
        samples = PROMPTS_A_STEP * 8
        total, generated = samples * record["total_length"], record["tokens_in_batch"]
        tokens = dict.fromkeys(phases, total) | {"rollout": generated}
        for phase, name in rates.items():
            assert record[name] * record[f"time_{phase}_seconds"] == pytest.approx(tokens[phase], rel=1e-5)
        active = flops.active_parameters(config)
        least = 4 * (sum(active.values()) - active["head"]) * total  # attention and the head's scored tokens beside it
        counted = record["tflops_train"] * record["time_train_seconds"] * 1e12
        assert least < counted < 4 * least
        # The policy's forward pass and the reference's, against a backward pass beside one of them.
        experience = record["tflops_experience"] * record["time_experience_seconds"] * 1e12
        assert 0.8 * counted < experience < counted
        assert record["trainer_gpus"] == 0
        assert not [name for name in record if name.endswith("_per_gpu") or "utilization" in name]
    first, _, last = read_jsonl(run_dir / TRAINING_FILE)
    assert first["time_evaluation_seconds"] > 0  # of the base model
    assert last["time_checkpoint_seconds"] > 0  # of the second step


def test_samples_of_every_step_can_be_read(run_dir):
    files = sample_files(run_dir / "samples")
    assert [(file.step, file.kind) for file in files] == [
        (0, EVALUATION),
        *((step, TRAINING) for step in range(1, STEPS)),
        (STEPS, EVALUATION),
        (STEPS, TRAINING),
    ]
    samples = list(read_samples(sample_file(run_dir / "samples", TRAINING, 2)))
    assert len(samples) == PROMPTS_A_STEP * 8
    for sample in samples:
        assert sample["adapter_version"] == 1
        assert sample["response"].startswith("<|channel|>")
        assert (sample["extracted_answer"] == sample["label"]) == (sample["reward"] == 1)
        assert sample["extraction"] in ("boxed", "last number", "none")
    assert sum(sample["reward"] for sample in samples) / len(samples) == pytest.approx(
        read_jsonl(run_dir / TRAINING_FILE)[1]["reward"]
    )


def test_reference_policy_costs_no_second_model(run_dir):
    records = read_jsonl(run_dir / TRAINING_FILE)
    assert records[0]["kl"] == 0  # the adapter is zero until the first update
    assert records[-1]["kl"] != 0
    assert "ReferenceModelActor" not in (run_dir / "train.log").read_text()


def wandb_log(file: Path) -> list[bytes]:
    """The records of an offline W&B file: LevelDB's log format behind a header of 7 bytes, for W&B has no reader."""
    data, place, records, parts = file.read_bytes(), 7, [], b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        if left < 7 or kind == 0:  # a block's padding
            place += left
            continue
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            records.append(parts)
            parts = b""
    return records


def wandb_records(folder: Path) -> tuple[list[dict], dict[str, str]]:
    """Every logged row of an offline W&B run, and the x-axis of each group of metrics."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    rows, axes = [], {}
    for data in wandb_log(file):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item})
        elif record.WhichOneof("record_type") == "metric" and record.metric.glob_name:
            axes[record.metric.glob_name] = record.metric.step_metric
    return rows, axes


def test_tensorboard_and_wandb_hold_the_same_numbers(run_dir):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(run_dir.parent / "tensorboard"))
    board.Reload()
    rows, axes = wandb_records(run_dir.parent)
    for record in read_jsonl(run_dir / TRAINING_FILE):
        step = record["global_step"]
        (row,) = [row for row in rows if row.get("train/global_step") == step and "train/reward" in row]
        for name in record.keys() - {"global_step", *CLOCKS}:
            assert row[f"train/{name}"] == pytest.approx(record[name])
            (value,) = [event.value for event in board.Scalars(f"train/{name}") if event.step == step]
            assert value == pytest.approx(record[name], rel=1e-5, abs=1e-9)
    assert axes == {"train/*": "train/global_step", "eval/*": "eval/global_step"}
    evaluated = [row for row in rows if "eval/global_step" in row]
    for record, row in zip(read_jsonl(run_dir / "eval_metrics.jsonl"), evaluated, strict=True):
        assert row["eval/global_step"] == record["global_step"]
        value = record["eval_heldout_greedy_pass@1"]
        assert row["eval/eval_heldout_greedy_pass@1"] == pytest.approx(value)
        (event,) = [e for e in board.Scalars("eval/eval_heldout_greedy_pass@1") if e.step == record["global_step"]]
        assert event.value == pytest.approx(value, rel=1e-5)


def test_nothing_that_the_run_started_is_left(run_dir):
    assert marked_processes(str(run_dir)) == []


def test_adapter_is_saved_whole_and_alone(run_dir):
    adapter = run_dir / "adapter"
    weights = [p.name for p in adapter.iterdir() if p.suffix in (".safetensors", ".bin", ".pt")]
    assert weights == ["adapter_model.safetensors"]
    tensors = load_file(adapter / "adapter_model.safetensors")
    assert len(tensors) == 16
    assert all(t.dtype == torch.bfloat16 and t.numel() for t in tensors.values())
    assert any(t.abs().sum() > 0 for name, t in tensors.items() if "lora_B" in name)


@pytest.fixture(scope="session")
def trained_engine(run_dir):
    """The run's base checkpoint in a fresh engine."""
    room = {"lora_rank": 8, "lora_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
    llm = open_engine(base_model_of(run_dir / "adapter"), max_model_len=256, **room)
    yield llm
    llm.llm_engine.engine_core.shutdown()


def test_adapters_are_served_exactly(request):
    """The default: nothing of the adapter is rounded away on its way, and little in the outputs of its layers."""
    from openrlhf.trainer.ray import create_vllm_engines

    # How an engine learns of it; without that a run ends at its first sync.
    assert "additional_config" in inspect.signature(create_vllm_engines).parameters
    run_dir = request.getfixturevalue("run_dir")
    steps = [step for step in read_jsonl(run_dir / TRAINING_FILE) if step["sync_changed_share"]]
    assert steps and {step["sync_kept_share"] for step in steps} == {1.0}
    for name in ("sync_output_kept_share", "adapter_output_kept_share"):
        assert all(0.8 < step[name] < 1.2 for step in steps), name


def test_engine_in_training_held_the_adapter_that_was_saved(run_dir, trained_engine):
    """Two ZeRO-3 ranks, Ray and the running engine end at the very bits that the saved adapter gives a fresh engine."""
    receipts = sync_engine(trained_engine, *read_adapter(run_dir / "adapter"))
    last = read_jsonl(run_dir / TRAINING_FILE)[-1]
    assert int(receipts[0]["checksum"], 16) & 0xFFFFFFFF == last["sync_checksum32"]


def test_greedy_tokens_match_the_peft_model(run_dir, trained_engine):
    """The engine chooses as the PEFT model does in float32, and is as near to it as the PEFT model in bf16."""
    from vllm import SamplingParams

    adapter = run_dir / "adapter"
    sync_engine(trained_engine, *read_adapter(adapter))
    tokenizer = trained_engine.get_tokenizer()
    prompts = [
        tokenizer.apply_chat_template(p["input"], add_generation_prompt=True, return_dict=True)["input_ids"]
        for p in read_problems(run_dir / "data" / "heldout.jsonl")[:48]
    ]
    params = SamplingParams(temperature=0, max_tokens=64, logprobs=0)
    outputs = trained_engine.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    samples = [(p, list(output.outputs[0].token_ids)) for p, output in zip(prompts, outputs, strict=True)]
    tokens = torch.tensor([token for _, completion in samples for token in completion])
    served = [
        place[token].logprob
        for (_, completion), output in zip(samples, outputs, strict=True)
        for token, place in zip(completion, output.outputs[0].logprobs, strict=True)
    ]
    known = float32_truth.truth(adapter, samples)
    turned = known.best != tokens
    error = (torch.tensor(served, dtype=torch.float64) - known.log_prob).abs().mean().item()
    print(f"{int(turned.sum())} of {len(tokens)} tokens turned, at most {known.most_turned():.1f}")
    print(f"mean error of a log-probability {error:.2g} nats, at most {known.farthest():.2g}")
    assert not (turned & known.decided()).any()
    assert turned.sum() <= known.most_turned()
    assert error <= known.farthest()

    # Both bounds see a model that is another one: here without YaRN's scaling of the attention.
    other = float32_truth.load(adapter, torch.float32)
    other.base_model.model.model.rotary_emb.attention_scaling = 1.0
    logits = [float32_truth.logits(other, *sample) for sample in samples]
    assert ((torch.cat(logits).argmax(-1) != tokens) & known.decided()).any()
    seen = torch.cat([float32_truth.chosen(z, completion) for z, (_, completion) in zip(logits, samples, strict=True)])
    assert (seen - known.log_prob).abs().mean() > known.farthest()
