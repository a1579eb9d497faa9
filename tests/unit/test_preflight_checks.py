"""Each check of the preflight page says no where it should, with the repair, and yes where nothing is wrong."""

import ast
import importlib.metadata
import importlib.util
import math
import os
import socket
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preflight_options import changed, options, refused, verdicts

from rft.runs import lr_schedule, preflight
from rft.runs.checks import GO, NO_GO, WARN, batches, command, disk, gigabytes, machine, memory, model, software
from rft.runs.checks.data import Prompts

CONFIG_20B = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_local_experts": 32,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 24,
    "vocab_size": 201088, "max_position_embeddings": 131072, "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
CONFIG_120B = CONFIG_20B | {"num_local_experts": 128, "num_hidden_layers": 36}
EIGHT_GPUS = (
    "--actor_num_gpus_per_node 4 --vllm_num_engines 2 --vllm_tensor_parallel_size 2 --vllm_gpu_memory_utilization 0.85 "
    "--lora_rank 32 --prompt_max_len 1024 --generate_max_len 4096 --rollout_batch_size 16 --train_batch_size 16 "
    "--micro_train_batch_size 1 --micro_rollout_batch_size 1"
)


UNEVEN = "--micro_train_batch_size 1 --actor_num_gpus_per_node"


# --- the command line ---


def test_the_parser_has_every_option_of_the_trainer():
    source = command.trainer_source().read_text()
    parser = command.trainer_parser()
    theirs = source.count("parser.add_argument(")
    ours = command.OURS.read_text().count("group.add_argument(")
    assert theirs > 100 and ours == 8 and len(parser._actions) == theirs + ours


def test_the_last_of_an_option_counts_and_defaults_are_filled_in():
    args = options("--num_episodes 3 --num_episodes 5")
    assert args.num_episodes == 5 and args.lr_warmup_ratio == 0.03 and args.rollout_seeds == "request"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "found 'nothing'"),
        (["python", "train.py"], "found 'python train.py'"),
        (["-m", command.MODULE, "--num_epiisodes", "3"], "num_epiisodes"),
        (["-m", command.MODULE, "--num_episodes", "many"], "invalid int value: 'many'"),
        (["-m", command.MODULE, "--kl_estimator", "k9"], "invalid choice: 'k9'"),
        (["-m", command.MODULE, "--stop_rules", "ood"], "--stop_rules: found 'ood', wanted off"),
        (["-m", command.MODULE, "--async_train", "--stop_rules", "all"], "cannot be stopped between two steps"),
        (["-m", command.MODULE, "--eval_dataset", "a/x.jsonl,b/x.jsonl"], "found two sets named 'x'"),
    ],
)
def test_bad_commands_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        command.parse(words)


def test_options_are_settled_as_the_trainer_does():
    assert options("--use_dynamic_batch").packing_samples
    assert options("--packing_samples").attn_implementation == "flash_attention_2"
    assert options("--advantage_estimator gae").critic_pretrain == "M"
    assert not options("--init_kl_coef 0.1").own_reference
    assert options("--init_kl_coef 0.1 --separate_reference_model").own_reference


# --- batches, steps, devices ---


def test_good_batches_pass():
    for text in ("", EIGHT_GPUS, "--use_dynamic_batch --micro_train_batch_size 3"):
        args = options(text)
        assert batches.check_sizes(args) == [] and verdicts(batches.check_batches(args)) == {GO}


@pytest.mark.parametrize(
    ("text", "measured", "repair"),
    [
        ("--train_batch_size 100", "100 is no multiple of micro-batch x ranks (64)", "--train_batch_size 64"),
        ("--train_batch_size 512", "--train_batch_size 512 above the 256 samples", "--train_batch_size 256"),
        ("--actor_num_gpus_per_node 8", "batches of 64 than there are ranks (8)", "--micro_rollout_batch_size 8"),
        (f"{UNEVEN} 2 --micro_rollout_batch_size 100", "train on 200, 56", "--micro_rollout_batch_size 8"),
        (f"{UNEVEN} 3 --train_batch_size 3", "train on 128, 128, 0", "--rollout_batch_size 33"),
        ("--n_samples_per_prompt 1 --rollout_batch_size 256", "with one sample", "--n_samples_per_prompt 8"),
        ("--on_policy_ratio_one --train_batch_size 128", "more than one update", "--train_batch_size 256"),
        ("--loss_normalization batch --use_dynamic_batch", "with dynamic batches", "leave --use_dynamic_batch out"),
    ],
)  # fmt: skip
def test_bad_batches_are_refused(text, measured, repair):
    refused(batches.check_batches(options(text)), measured, repair)


def test_gradients_that_are_left_over_are_a_warning():
    args = options("--train_batch_size 192 --micro_train_batch_size 64")
    refused(batches.check_batches(args), "leave 64 gradients over", "--rollout_batch_size", WARN)


@pytest.mark.parametrize("name", ["rollout_batch_size", "micro_train_batch_size", "vllm_tensor_parallel_size"])
def test_sizes_below_one_are_refused_before_anything_divides_by_them(name):
    refused(batches.check_sizes(options(f"--{name} 0")), f"--{name} 0: wanted 1 or more", "correct it")


@pytest.mark.parametrize("name", ["eval_steps", "save_steps", "logging_steps"])
def test_steps_of_zero_are_refused_before_the_trainer_divides_by_them(name):
    refused(batches.check_sizes(options(f"--{name} 0")), f"--{name} 0: the trainer divides by it", "leave it out")
    assert not batches.check_sizes(options(f"--{name} 1")) and not batches.check_sizes(options("--eval_steps -1"))


def test_actors_that_ring_attention_cannot_split_are_refused():
    args = options("--actor_num_gpus_per_node 3 --ring_attn_size 2")
    refused(batches.check_sizes(args), "3 actor GPUs cannot be split", "--ring_attn_size 1")


@settings(max_examples=300, deadline=None)
@given(size=st.integers(1, 600), micro=st.integers(1, 32), actors=st.integers(1, 16))
def test_train_batch_size_is_refused_exactly_where_deepspeed_would(size, micro, actors):
    from deepspeed.runtime.config import DeepSpeedConfig

    config = object.__new__(DeepSpeedConfig)
    config.train_batch_size, config.train_micro_batch_size_per_gpu, config.world_size = size, micro, actors
    config.gradient_accumulation_steps = None
    config._set_batch_related_parameters()
    try:
        config._batch_assertion()
        sound = True
    except AssertionError:
        sound = False
    sizes = {"train_batch_size": size, "micro_train_batch_size": micro, "actors": actors}
    args = changed(micro_rollout_batch_size=1, rollout_batch_size=size * actors, n_samples_per_prompt=2, **sizes)
    faults = [f for f in batches.fault_lines(args) if "no multiple" in f.measured]
    assert bool(faults) != sound
    if faults:  # the repair is a size that DeepSpeed takes
        assert int(faults[0].repair.split()[-1]) % (micro * actors) == 0


@settings(max_examples=200, deadline=None)
@given(prompts=st.integers(1, 64), n=st.integers(1, 8), micro=st.integers(1, 70), actors=st.integers(1, 9))
def test_every_sample_is_dealt_out_once_and_uneven_deals_are_refused(prompts, n, micro, actors):
    sizes = {"rollout_batch_size": prompts, "n_samples_per_prompt": n, "actors": actors}
    args = changed(micro_rollout_batch_size=micro, advantage_estimator="reinforce", **sizes)
    deal = batches.samples_by_rank(args)
    assert sum(deal) == prompts * n and len(deal) == actors
    uneven = any(
        "wait for each other" in f.measured or "fewer batches" in f.measured for f in batches.fault_lines(args)
    )
    assert uneven == (len(set(deal)) > 1 or prompts * n // micro < actors)


@settings(max_examples=300, deadline=None)
@given(
    prompts=st.integers(1, 64), n=st.integers(2, 8), train=st.integers(1, 600), micro=st.integers(1, 70),
    rollout=st.integers(1, 70), actors=st.integers(1, 9),
)  # fmt: skip
def test_following_the_repairs_ends_at_go(prompts, n, train, micro, rollout, actors):
    args = changed(
        rollout_batch_size=prompts, n_samples_per_prompt=n, train_batch_size=train, micro_train_batch_size=micro,
        micro_rollout_batch_size=rollout, actors=actors,
    )  # fmt: skip
    for _ in range(5):
        faults = [fault for fault in batches.check_batches(args) if fault.verdict == NO_GO]
        if not faults:
            return
        words = faults[0].repair.split()
        args = Namespace(
            **vars(args) | {k.removeprefix("--"): int(v) for k, v in zip(words[::2], words[1::2], strict=True)}
        )
    raise AssertionError(faults)


def test_steps():
    args = options("--eval_dataset E.jsonl --eval_steps 4 --save_steps 10")
    found = batches.check_steps(args, 770)
    assert verdicts(found) == {GO} and found[0].measured == "24 rollout steps, 2 prompts an episode left out"
    refused(batches.check_steps(args, 31), "31 prompts, below --rollout_batch_size 32", "--rollout_batch_size 31")
    refused(batches.check_steps(args, None), "number of prompts unknown", "--prompt_data", WARN)
    refused(batches.check_steps(args, 32), "--eval_steps 4: no evaluation in 1 rollout steps", "--eval_steps 1", WARN)
    refused(batches.check_steps(args, 32), "--save_steps 10: no checkpoint", "--save_steps 1", WARN)
    greedy = options("--eval_dataset E.jsonl --eval_steps 4 --eval_temperature 0 --eval_n_samples_per_prompt 8")
    refused(batches.check_steps(greedy, 768), "8 equal samples a prompt", "--eval_n_samples_per_prompt 1", WARN)
    asynchronous = options("--eval_dataset E.jsonl --eval_steps 4 --async_train")
    refused(batches.check_steps(asynchronous, 768), "no evaluation in the loop", "leave --async_train out", WARN)
    frozen = options("--freezing_actor_steps 100")
    refused(batches.check_steps(frozen, 768), "no update until then", "leave --freezing_actor_steps out", WARN)
    unrewarded = options("--eval_dataset E.jsonl --eval_steps 4")
    unrewarded.remote_rm_url = None
    refused(batches.check_steps(unrewarded, 768), "without a reward function", "--remote_rm_url")


def test_learning_rate():
    assert verdicts(batches.check_learning_rate(options(), 768)) == {GO}
    slow = options("--num_episodes 400 --lr_warmup_ratio 0.5")
    refused(batches.check_learning_rate(slow, 768), "after optimizer step 20 of 9,600", "--lr_warmup_ratio")
    refused(batches.check_learning_rate(options("--actor_learning_rate 0"), 768), "0: nothing is learnt", "5e-7", WARN)
    refused(batches.check_learning_rate(options("--actor_learning_rate 1"), 768), "collapsed", "5e-7", WARN)
    refused(batches.check_learning_rate(options("--lr_scheduler constant"), 768), "not judged", "cosine", WARN)
    refused(batches.check_learning_rate(options("--lr_scheduler linear"), 768), "does not take", "cosine_with_min_lr")
    refused(batches.check_learning_rate(options("--train_batch_size 256"), 1), "no optimizer step", "more prompts")


def test_schedulers_that_the_trainer_can_build_are_known():
    import torch
    from transformers.optimization import SchedulerType, get_scheduler

    for kind in SchedulerType:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        try:
            get_scheduler(kind, optimizer, 1, 10, {"min_lr_rate": lr_schedule.MIN_RATE})
            built = True
        except TypeError:
            built = False
        assert built == (kind.value in batches.SCHEDULERS), kind


def test_devices():
    assert verdicts(batches.check_devices(options(), CONFIG_20B, None)) == {GO}
    found = batches.check_devices(options(EIGHT_GPUS), CONFIG_20B, 8)
    assert verdicts(found) == {GO} and found[0].measured == "4 actor, 2 x 2 engine: 8 GPUs of 8"
    refused(batches.check_devices(options(EIGHT_GPUS), CONFIG_20B, 6), "8 GPUs wanted, 6 here", "--colocate_all_models")
    refused(
        batches.check_devices(options("--vllm_num_engines 0"), {}, None), "no rollout engine", "--vllm_num_engines 2"
    )
    three = options("--vllm_tensor_parallel_size 3")
    refused(batches.check_devices(three, CONFIG_20B, None), "does not divide 64", "--vllm_tensor_parallel_size 1")
    heads = {"num_attention_heads": 24, "num_key_value_heads": 8}
    six = options("--vllm_tensor_parallel_size 6")
    refused(batches.check_devices(six, heads, None), "6 does not divide 8 (num_key_value_heads)", "_size 2")
    assert verdicts(batches.check_devices(options("--vllm_tensor_parallel_size 16"), CONFIG_20B, None)) == {GO}
    shared = options("--colocate_all_models --actor_num_gpus_per_node 4 --vllm_num_engines 3")
    refused(batches.check_devices(shared, CONFIG_20B, None), "with 4 actor GPUs and 3 x 1", "--vllm_num_engines 4")
    reference = options("--colocate_actor_ref --init_kl_coef 0.1 --separate_reference_model")
    refused(batches.check_devices(reference, {}, None), "8 GPUs for the reference", "--ref_num_gpus_per_node 1")


def test_gpus_wanted_by_placement():
    assert batches.gpus_wanted(options()) == 2
    assert batches.gpus_wanted(options("--init_kl_coef 0.1 --separate_reference_model")) == 10
    assert batches.gpus_wanted(options("--colocate_all_models")) == 1
    assert batches.gpus_wanted(options("--advantage_estimator gae --critic_num_gpus_per_node 2")) == 4


# --- the model ---


def test_parameters_are_the_measured_sizes():
    assert memory.gigabytes(2 * model.parameters(CONFIG_20B)) == "41.8 GB"  # shared: docs/benchmarks.md, on one H200
    assert gigabytes(2 * model.parameters(CONFIG_120B)) == "233.7 GB"
    assert gigabytes(2 * model.lora_parameters(options("--lora_rank 32"), CONFIG_20B)) == "31.9 MB"


def test_parameters_equal_a_built_model():
    from rft.tiny.checkpoint import build_model

    built = build_model(seed=0)
    assert model.parameters(built.config.to_dict()) == sum(p.numel() for p in built.parameters())


def test_attention():
    assert verdicts(model.check_attention(options(), CONFIG_20B)) == {GO}
    for name in model.NO_SINKS:
        refused(model.check_attention(options(f"--attn_implementation {name}"), CONFIG_20B), "sinks", "eager")
    refused(model.check_attention(options("--use_dynamic_batch"), CONFIG_20B), "packed samples", "without --packing")
    checkpointing = options("--gradient_checkpointing")
    refused(model.check_attention(checkpointing, CONFIG_20B), "fails under ZeRO-3", "_use_reentrant")
    reentrant = options("--gradient_checkpointing --gradient_checkpointing_use_reentrant")
    assert verdicts(model.check_attention(reentrant, CONFIG_20B)) == {GO}


def test_attentions_without_sinks_are_those_that_the_trainer_refuses():
    path = Path(model.__file__).resolve().parents[2] / "hooks" / "moe.py"
    names = {n.targets[0].id: n.value for n in ast.parse(path.read_text()).body if isinstance(n, ast.Assign)}
    assert ast.literal_eval(names["NO_SINKS"]) == model.NO_SINKS


def test_a_config_without_sizes_is_refused(tmp_path, checkpoint):
    for file in checkpoint.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss", "hidden_size": 128}')
    found = model.check_model(options(f"--pretrain {tmp_path}"))
    refused(found, "config.json without intermediate_size, num_local_experts", "checkpoint again")


def test_reward(tmp_path):
    file = tmp_path / "reward.py"
    args = options(f"--remote_rm_url {file}")
    refused(model.check_reward(args), "found no file", "--remote_rm_url rewards/reward_func_em.py")
    for text, measured in (("def reward_func(:", "invalid syntax"), ("x = 1", "defines no reward_func")):
        file.write_text(text)
        refused(model.check_reward(args), measured, "mend the file" if "syntax" in measured else "def reward_func")
    file.write_text("raise RuntimeError\ndef reward_func(queries, prompts, labels): ...")
    assert verdicts(model.check_reward(args)) == {GO}
    assert "not looked at" in model.check_reward(options("--remote_rm_url http://host/reward"))[0].measured
    args.remote_rm_url = None
    refused(model.check_reward(args), "neither a reward function", "--remote_rm_url FILE.py")


def test_lora():
    assert verdicts(model.check_lora(options())) == {GO}
    refused(model.check_lora(options("--lora_rank 0")), "whole model", "--lora_rank 32", WARN)
    refused(model.check_lora(options("--target_modules q_proj gate_up")), "targets gate_up", "v_proj o_proj", WARN)
    everything = command.parse(["-m", command.MODULE, "--lora_rank", "8"])
    refused(model.check_lora(everything), "targets all-linear", "--target_modules q_proj", WARN)


def test_lengths():
    assert verdicts(model.check_lengths(options(), CONFIG_20B, 90)) == {GO}
    short = CONFIG_20B | {"max_position_embeddings": 128}
    refused(
        model.check_lengths(options(), short, None), "96 + 64 tokens, but the model has 128", "--generate_max_len 32"
    )
    refused(model.check_lengths(options("--max_len 100"), CONFIG_20B, None), "below 160 tokens", "leave --max_len out")
    refused(model.check_lengths(options(), CONFIG_20B, 120), "a prompt of 120 tokens", "--prompt_max_len 120", WARN)


def test_model_directory(tmp_path, checkpoint):
    assert verdicts(model.check_model(options(f"--pretrain {checkpoint}"))) == {GO}
    refused(model.check_model(options(f"--pretrain {tmp_path}/none")), "no such directory", "--pretrain DIR")
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    refused(model.check_model(options(f"--pretrain {tmp_path}")), "found model_type 'qwen2'", "--pretrain DIR")


def test_going_on_needs_a_checkpoint(tmp_path):
    args = options(f"--ckpt_path {tmp_path}")
    assert model.check_resume(args) == []
    args.load_checkpoint = True
    refused(model.check_resume(args), f"no complete checkpoint in {tmp_path}", "RUN_DIR=")
    (tmp_path / "_actor" / "global_step4").mkdir(parents=True)
    refused(model.check_resume(args), f"no complete checkpoint in {tmp_path}", "RUN_DIR=")  # killed in its first save
    (tmp_path / "_actor" / "latest").write_text("global_step4")
    (line,) = model.check_resume(args)
    assert line.verdict == GO and "global_step4" in line.measured
    (tmp_path / "_actor" / "global_step4").rmdir()
    refused(model.check_resume(args), f"no complete checkpoint in {tmp_path}", "RUN_DIR=")


# --- disk and memory ---


def test_disk(tmp_path, checkpoint):
    place = f"--pretrain {checkpoint} --save_path {tmp_path}/new/adapter --ckpt_path {tmp_path}/ckpt"
    found = disk.check_disk(options(f"{place} --save_steps 5"), CONFIG_20B, tmp_path / "run", 768, 0)
    assert verdicts(found) <= {GO, WARN} and len(found) == 1 and not (tmp_path / "new").exists()
    huge = options(f"{place} --lora_rank 0 --save_steps 1 --max_ckpt_num 100")
    refused(disk.check_disk(huge, CONFIG_120B, tmp_path / "run", 768, 0), "checkpoints ", "--max_ckpt_num 1")


def test_samples_that_fit_only_when_short_are_a_warning(tmp_path, checkpoint):
    place = f"--pretrain {checkpoint} --save_path {tmp_path}/a --ckpt_path {tmp_path}/c --disable_ds_ckpt"
    args = options(f"{place} --save_steps 1 --generate_max_len 100000000")
    refused(disk.check_disk(args, CONFIG_20B, tmp_path, 768, 0), "only for shorter", "a higher --save_steps", WARN)


def test_a_small_disk_is_refused_by_its_name(tmp_path, checkpoint, monkeypatch):
    """/dev/shm is a file system of its own on every Linux: what it lacks is not counted against the others."""
    shm, free = Path("/dev/shm"), os.statvfs("/dev/shm")
    if shm.stat().st_dev == tmp_path.stat().st_dev or not os.access(shm, os.W_OK):
        pytest.skip("no file system of its own")
    steps = free.f_bavail * free.f_frsize // disk.BYTES_A_STEP  # half of what would fill it twice
    monkeypatch.setenv("METRICS_LOG_DIR", str(shm))
    args = options(f"--pretrain {checkpoint} --save_path {tmp_path} --ckpt_path {tmp_path} --num_episodes {steps}")
    refused(disk.check_disk(args, CONFIG_20B, tmp_path, 64, 0), "to write at /dev/shm (metrics", "--max_ckpt_num")


def test_what_is_planned(tmp_path, checkpoint, monkeypatch):
    monkeypatch.setenv("SAMPLES_LOG_DIR", str(tmp_path / "samples"))
    monkeypatch.delenv("METRICS_LOG_DIR", raising=False)
    args = options(f"--pretrain {checkpoint} --lora_rank 32 --save_steps 6 --max_ckpt_num 2 --save_hf_ckpt")
    sizes = {name: size for name, _, size in disk.planned(args, CONFIG_20B, tmp_path, 768, 0)}
    adapter = 2 * model.lora_parameters(args, CONFIG_20B)
    tokenizer = (checkpoint / "tokenizer.json").stat().st_size
    assert sizes["final weights"] == adapter + tokenizer
    # 24 steps make four checkpoints; two are kept and a third stands beside them while it is written
    assert sizes["checkpoints"] == 3 * (7 * adapter) + 3 * (adapter + tokenizer)
    assert sizes["samples"] == 4 * 256 * (160 * disk.BYTES_A_TOKEN + disk.BYTES_A_SAMPLE)
    args.eval_dataset, args.eval_steps = "E.jsonl", 6  # a new best stands beside the former one while it is written
    kept = {name: size for name, _, size in disk.planned(args, CONFIG_20B, tmp_path, 768, 0)}["checkpoints"]
    assert kept == sizes["checkpoints"] + 2 * (adapter + tokenizer)
    without = {n: s for n, _, s in disk.planned(options(f"--pretrain {checkpoint}"), CONFIG_20B, tmp_path, 768, 0)}
    assert without["checkpoints"] == without["samples"] == 0


def test_places_that_cannot_be_written_to(tmp_path, checkpoint):
    place = next((p for p in ("/proc/sys", "/sys", "/") if not os.access(p, os.W_OK)), None)
    if place is None:
        pytest.skip("everything can be written to")
    args = options(f"--pretrain {checkpoint} --save_path {place}/new")
    refused(disk.check_disk(args, CONFIG_20B, tmp_path, 64, 0), f"{place} cannot be written to", f"chmod u+w {place}")


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Put an nvidia-smi on PATH that prints these lines."""

    def install(*rows: str, status: int = 0):
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows) + f"exit {status}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)

    monkeypatch.delenv("RFT_STACK", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return install


def test_gpus_are_read_from_nvidia_smi(nvidia_smi, monkeypatch):
    nvidia_smi("0, 80000, 81559, NVIDIA H100", "1, 500, 81559, NVIDIA H100")
    assert [gpu["free"] for gpu in memory.read_gpus()] == [80000 * 2**20, 500 * 2**20]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert len(memory.read_gpus()) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5d3f0c1a")
    assert len(memory.read_gpus()) == 2
    nvidia_smi("No devices were found", status=6)
    assert memory.read_gpus() is None
    monkeypatch.setenv("RFT_STACK", "cpu")
    nvidia_smi("0, 80000, 81559, NVIDIA H100")
    assert memory.read_gpus() is None


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_are_none_to_place_anything_on(nvidia_smi, monkeypatch, tmp_path, checkpoint, hidden):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    nvidia_smi("0, 80000, 81559, NVIDIA H100", "1, 80000, 81559, NVIDIA H100")
    args = options(f"--pretrain {checkpoint} --save_path {tmp_path}/a --ckpt_path {tmp_path}/c")

    def devices() -> list:
        found = preflight.check_resources(args, CONFIG_20B, tmp_path, Prompts([], 64, 0, []))
        return [line for line in found if line.name == "devices"]

    assert verdicts(devices()) == {GO}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert memory.read_gpus() == []
    refused(devices(), "2 GPUs wanted, 0 here", "--colocate_all_models")


def gpus(free_gb: float, total_gb: float = 85.5) -> list[dict]:
    return [{"free": free_gb * 1e9, "total": total_gb * 1e9, "name": "GPU"}] * 8


def weights_of(path: Path, size: float) -> Path:
    """A directory with a sparse file of so many bytes as its weights."""
    path.mkdir()
    with (path / "model.safetensors").open("wb") as stream:
        stream.truncate(int(size))
    return path


def test_gpu_memory_of_the_real_sizes(tmp_path):
    small = f"{EIGHT_GPUS} --pretrain {weights_of(tmp_path / 'small', 13.8e9)}"
    large = f"{EIGHT_GPUS} --pretrain {weights_of(tmp_path / 'large', 65e9)}"
    assert memory.check_gpu_memory(options(small), CONFIG_20B, None)[0].measured == "skipped: no GPU"
    assert verdicts(memory.check_gpu_memory(options(small), CONFIG_20B, gpus(85))) == {GO}
    refused(memory.check_gpu_memory(options(small), CONFIG_20B, gpus(30)), "engine", "end what uses the GPU")
    refused(memory.check_gpu_memory(options(large), CONFIG_120B, gpus(85)), "actor: about", "--offload --adam_offload")
    offloaded = options(f"{large} --offload --adam_offload")
    assert verdicts(memory.check_gpu_memory(offloaded, CONFIG_120B, gpus(85))) == {GO}
    narrow = options(f"{large} --offload --adam_offload --vllm_gpu_memory_utilization 0.4")
    refused(memory.check_gpu_memory(narrow, CONFIG_120B, gpus(85)), "no room for a KV cache", "tensor_parallel_size")
    shared = options(f"{small} --colocate_all_models --actor_num_gpus_per_node 4")
    refused(memory.check_gpu_memory(shared, CONFIG_20B, gpus(85)), "actor + engine", "--micro_train_batch_size 1")
    reference = options(f"{small} --init_kl_coef 0.1 --separate_reference_model --ref_num_gpus_per_node 1")
    refused(
        memory.check_gpu_memory(reference, CONFIG_20B, gpus(45)), "reference: about 49.6 GB", "--ref_reward_offload"
    )


def test_actor_estimate_is_the_measured_peak():
    """docs/benchmarks.md, whole loop on one H200: 54.4 and 62.6 GiB with micro-batches of 2 and 4 x 1,088 tokens."""
    shape = "--lora_rank 32 --prompt_max_len 64 --generate_max_len 1024 --micro_rollout_batch_size 2"
    for micro, measured in ((2, 54.4), (4, 62.6)):
        estimate = memory.actor_bytes(options(f"{shape} --micro_train_batch_size {micro}"), CONFIG_20B) / 2**30
        assert math.isclose(estimate, measured, rel_tol=0.05)


def test_host_memory(monkeypatch):
    monkeypatch.delenv("DS_ACCELERATOR")
    args = options(EIGHT_GPUS)
    refused(memory.check_host_memory(args, CONFIG_20B, 100 * 10**9), "about 167.3 GB", "more memory")
    assert verdicts(memory.check_host_memory(args, CONFIG_20B, 500 * 10**9)) == {GO}
    assert verdicts(memory.check_host_memory(options(), {**CONFIG_20B, "num_hidden_layers": 0})) == {GO}


def test_a_meminfo_without_the_number_is_an_error(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 5 kB\n")
    with pytest.raises(ValueError, match="no MemAvailable"):
        memory.available_memory(str(tmp_path / "meminfo"))


# --- software and machine ---


def test_patches_and_nodes(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RFT_RAY_LOGS", raising=False)
    found = software.check_nodes()
    assert found[0].measured == "this machine only"
    with socket.socket() as sock:  # bound and not listening: refused at once
        sock.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{sock.getsockname()[1]}")
        refused(software.check_nodes(), "no Ray cluster answers", "ray start --head")
        refused(machine.check_ray(Path("run")), "nothing answers", "unset RAY_ADDRESS")
        monkeypatch.setenv("RFT_RAY_LOGS", "x")
        assert software.check_nodes()[0].measured == "this machine only"


def test_an_unpatched_tree_is_refused(tmp_path, monkeypatch):
    """In an environment without the packages, the check is what it would be after a reinstallation."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    found = software.check_patches()
    assert found[0].verdict == NO_GO and found[0].measured


def test_versions(tmp_path):
    assert software.check_versions()[0].verdict in (GO, WARN)
    lock = tmp_path / "cpu.txt"
    version = importlib.metadata.version("transformers")
    lock.write_text(f"transformers=={version} \\\n    --hash=sha256:00\nray==0.1\nnot-there==1.0\n")
    found = software.check_versions(lock)
    refused(found, f"ray {importlib.metadata.version('ray')} (wanted 0.1)", "uv pip install")
    refused(found, "not-there missing (wanted 1.0)", "-r requirements/cpu.txt", WARN)
    lock.write_text(f"transformers=={version}\n")
    assert software.check_versions(lock)[0].measured == "1 packages as in requirements/cpu.txt"
    found = software.installed_versions()
    for name in ("torch", "openrlhf", "transformers", "deepspeed", "ray", "peft", "typing-extensions"):
        assert found[name] == importlib.metadata.version(name)
    assert software.same_version("2.10.0+cu128", "2.10.0") and not software.same_version("2.10.1", "2.10.0")


def test_ports(monkeypatch):
    monkeypatch.delenv("MASTER_PORT", raising=False)
    assert verdicts(machine.check_ports()) == {GO}
    with socket.socket() as sock:
        sock.bind(("", 0))
        sock.listen()
        monkeypatch.setenv("MASTER_PORT", str(sock.getsockname()[1]))
        refused(machine.check_ports(), "is taken", "unset MASTER_PORT")
    monkeypatch.setattr(machine, "PORTS_WANTED", 70_000)
    refused(machine.check_ports(), "about 70000 wanted", "sysctl")


def test_another_ray_cluster_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RFT_RAY_LOGS", raising=False)
    before = machine.ray_heads()
    process = subprocess.Popen(["/opt/ray/gcs/gcs_server", "60"], executable="/bin/sleep", env={})
    ours = subprocess.Popen(
        ["/opt/ray/gcs/gcs_server", "60"], executable="/bin/sleep", env={"RFT_RUN_DIR": str(tmp_path)}
    )
    try:
        while not Path(f"/proc/{ours.pid}/environ").read_bytes():  # the kernel fills it in after exec has begun
            time.sleep(0.01)
        found = machine.check_ray(tmp_path)
        pids = found[0].measured.partition("process ")[2].partition(")")[0].split(", ")
        assert found[0].verdict == WARN and str(process.pid) in pids and str(ours.pid) not in pids
        assert f"ps -p {sorted([*before, process.pid])[0]}" in found[0].repair or before
    finally:
        for started in (process, ours):
            started.kill()
            started.wait()


def test_offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    assert verdicts(machine.check_offline()) == {GO}
    monkeypatch.delenv("TRANSFORMERS_OFFLINE")
    refused(machine.check_offline(), "TRANSFORMERS_OFFLINE off", "export TRANSFORMERS_OFFLINE=1", WARN)


def test_wandb(monkeypatch, tmp_path):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert machine.check_wandb(options())[0].measured == "not used"
    args = options("--use_wandb true")
    if importlib.util.find_spec("wandb") is None:
        refused(machine.check_wandb(args), "not installed", "uv pip install wandb")
        (tmp_path / "wandb.py").write_text("")
        monkeypatch.syspath_prepend(tmp_path)
    refused(machine.check_wandb(args), "online, without a key", "WANDB_MODE=offline")
    secret = "0123456789" * 4
    found = machine.check_wandb(options(f"--use_wandb {secret}"))
    refused(found, "the key stands in the command line", "WANDB_API_KEY", WARN)
    assert secret not in str(found)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert verdicts(machine.check_wandb(args)) == {GO}
    monkeypatch.delenv("WANDB_MODE")
    (tmp_path / ".netrc").write_text("broken\n")
    assert verdicts(machine.check_wandb(args)) == {NO_GO}
    (tmp_path / ".netrc").write_text(f"machine api.wandb.ai\n  login user\n  password {secret}\n")
    found = machine.check_wandb(args)
    assert verdicts(found) == {GO} and secret not in str(found)


def test_git(tmp_path):
    refused(machine.check_git(tmp_path), "no checkout", "git clone", WARN)
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]

    def run(*words: str) -> None:
        subprocess.run(["git", *identity, *words], cwd=tmp_path, env=environment, check=True, capture_output=True)

    run("init")
    (tmp_path / "file").write_text("a")
    run("add", ".")
    run("commit", "-m", "first")
    refused(machine.check_git(tmp_path), "has no tag", "git tag attempt-XX-start", WARN)
    run("tag", "attempt-01-start")
    found = machine.check_git(tmp_path)
    assert verdicts(found) == {GO} and found[0].measured.endswith(", attempt-01-start")
    (tmp_path / "file").write_text("b")
    refused(machine.check_git(tmp_path), "1 uncommitted changes", "git commit", WARN)


def test_sizes_read_well():
    assert [gigabytes(n) for n in (12, 1500, 31.9e6, 41.83e9)] == ["12 B", "1.5 kB", "31.9 MB", "41.8 GB"]
