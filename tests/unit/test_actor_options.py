"""`--actor`: what it is where it is left out, and what the resident actor refuses, each with a repair that helps."""

import json
import shlex

import pytest

from rft.options.actor import choose, require_resident
from rft.options.command import parse

PACKED = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}, "num_local_experts": 8}
SOUND = "--remote_rm_url r.py --lora_rank 8 --target_modules q_proj v_proj"


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PACKED))
    return tmp_path


def read(model, words: str):
    return parse(["-m", "openrlhf.cli.train_ppo_ray", "--pretrain", str(model), *shlex.split(words)])


@pytest.mark.parametrize(("config", "which"), [(PACKED, "resident"), ({"model_type": "llama"}, "eager"), ({}, None)])
def test_gpt_oss_in_mxfp4_is_resident_and_an_unknown_model_is_left_open(model, config, which):
    args = read(model, f"{SOUND} --lora_serving exact")
    args.actor = None
    choose(args, config)
    assert args.actor == which


@pytest.mark.parametrize(
    ("more", "repair"),
    [
        ("--lora_rank 0", "--lora_rank 32 --target_modules q_proj k_proj v_proj o_proj"),
        ("--target_modules all-linear", "--target_modules q_proj k_proj v_proj o_proj"),
        ("--target_modules q_proj experts.gate_up_proj", "--target_modules q_proj k_proj v_proj o_proj"),
        ("--param_dtype fp16", "--param_dtype bf16"),
        ("--separate_reference_model", None),
        ("--load_in_4bit", None),
        ("--use_liger_kernel", None),
        ("--deepcompile", None),
        ("--ds_tensor_parallel_size 2", None),
        ("--aux_loss_coef 0.1", None),
    ],
)
def test_what_it_cannot_train_is_refused_with_a_repair(model, more, repair):
    args = settled(model, f"{SOUND} {more}")
    with pytest.raises(ValueError, match="--actor resident cannot train this") as refused:
        require_resident(args)
    last = str(refused.value).splitlines()[-1]
    assert last == f"  repair: {repair or 'leave it out'}, or --actor eager (slower, and the whole model in bf16)"
    require_resident(settled(model, f"{SOUND} {more} {repair}" if repair else SOUND))
    require_resident(settled(model, f"{SOUND} {more} --actor eager"))


def settled(model, words: str):
    """Without the refusals of others, which may come first."""
    from rft.options.command import trainer_parser

    args = trainer_parser().parse_args(["--pretrain", str(model), *shlex.split(words)])
    choose(args, PACKED)
    return args


def test_another_model_is_refused(model):
    args = settled(model, f"{SOUND} --actor resident")
    with pytest.raises(ValueError, match="found:  a model of type llama\n  wanted: gpt-oss with experts in MXFP4"):
        require_resident(args, {"model_type": "llama"})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--shard_experts 2 --actor eager", "belongs to the resident actor"),
        ("--shard_experts 3 --actor_num_gpus_per_node 3", "found:  3 actor ranks, 8 experts"),
        ("--shard_experts 2 --actor_num_gpus_per_node 3", "wanted: a divisor of both"),
        ("--shard_experts 0", "cannot split the experts"),
    ],
)
def test_experts_are_split_evenly_or_not_at_all(model, words, message):
    with pytest.raises(ValueError, match=message):
        require_resident(settled(model, f"{SOUND} {words}"))


def test_a_split_that_fits_is_taken(model):
    require_resident(settled(model, f"{SOUND} --shard_experts 4 --actor_num_gpus_per_node 8"))
