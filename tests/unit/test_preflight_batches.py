"""Preflight: the command line, the batches and steps it leads to, the learning rate, the devices."""

import inspect
from argparse import Namespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preflight_options import CONFIG_20B, EIGHT_GPUS, TINY, changed, options, refused, verdicts

from rft.options import add, check, command
from rft.runs.preflight import batches
from rft.runs.preflight.lines import GO, NO_GO, WARN

LORA = ("-m", command.MODULE, "--lora_rank", "8", "--target_modules")
ASYNC = ("--async_train", "--enable_vllm_is_correction")
UNEVEN = "--micro_train_batch_size 1 --actor_num_gpus_per_node"


def test_the_parser_has_every_option_of_the_trainer():
    source = command.installed_source().read_text()
    parser = command.trainer_parser()
    theirs = source.count("parser.add_argument(")
    ours = inspect.getsource(add).count("group.add_argument(")
    assert theirs > 100 and ours > 8 and len(parser._actions) == theirs + ours


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
        (["-m", command.MODULE, *ASYNC, "--stop_rules", "all"], "cannot be stopped between two steps"),
        (["-m", command.MODULE, "--eval_dataset", "a/x.jsonl,b/x.jsonl"], "found two sets named 'x'"),
        (["-m", command.MODULE, "--samples_every", "-1"], "found:  --samples_every -1"),
        (["-m", command.MODULE, "--samples_keep_gb", "nan"], "--samples_keep_gb nan"),
        (["-m", command.MODULE, "--async_train"], "found:  --async_train without --enable_vllm_is_correction"),
        (["-m", command.MODULE, "--enable_ema", "--lora_rank", "8"], "found:  --enable_ema with --lora_rank 8"),
        ([*LORA, "q_proj", "lm_head"], "found:  --target_modules q_proj lm_head"),
        ([*LORA, "model.embed_tokens"], "found:  --target_modules model.embed_tokens"),
    ],
)
def test_bad_commands_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        command.parse(words)


@pytest.mark.parametrize(
    "text",
    [
        "--async_train", "--enable_ema", "--target_modules lm_head", "--n_samples_per_prompt 1",
        "--advantage_estimator rloo --n_samples_per_prompt 1", "--on_policy_ratio_one --train_batch_size 128",
        "--use_dynamic_batch", "--train_max_tokens_per_gpu 9000", "--loss_normalization batch --policy_loss_type gspo",
        "--vllm_is_correction_type mis", "--attn_implementation flash_attention_2", "--attn_implementation sdpa",
        "--packing_samples", "--micro_train_tokens 640", "--ring_attn_size 2", "--stop_rules all --async_train",
        "--mask_truncated --policy_loss_type gspo", "--reasoning_effort low",
    ],
)  # fmt: skip
def test_trainer_and_preflight_refuse_the_same_with_one_message(text, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss"}')
    words = [*TINY.split(), "--pretrain", str(tmp_path), *text.split()]
    with pytest.raises(ValueError, match=r"found:? (.|\n)*\n  wanted: (.|\n)*\n  repair: ") as preflight:
        command.parse(["-m", command.MODULE, *words])
    with pytest.raises(SystemExit) as trainer:
        check(command.trainer_parser().parse_args(words))
    assert trainer.value.code == f"error: {preflight.value}"


def test_a_model_of_another_family_may_be_packed(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    args = options(f"--pretrain {tmp_path} --packing_samples")
    assert args.attn_implementation == "flash_attention_2"
    check(args)


def test_options_that_are_refused_together_are_sound_alone():
    assert options("--async_train --enable_vllm_is_correction").async_train
    assert options("--enable_ema --lora_rank 0").enable_ema
    assert options("--lora_rank 0 --target_modules lm_head").target_modules == ["lm_head"]
    assert options("--target_modules lm_head_proj").lora_rank == 8


def test_options_are_settled_as_the_trainer_does():
    tokens = options("--micro_train_tokens 640 --loss_normalization batch")
    assert (tokens.use_dynamic_batch, tokens.packing_samples) == (True, False)
    assert (tokens.micro_train_batch_size, tokens.micro_rollout_batch_size, tokens.micro_rollout_tokens) == (1, 1, 640)
    assert options("--packing_samples").attn_implementation == "flash_attention_2"
    assert options("--advantage_estimator gae").critic_pretrain == "M"
    assert not options("--init_kl_coef 0.1").own_reference
    assert options("--init_kl_coef 0.1 --separate_reference_model").own_reference


def test_good_batches_pass():
    for text in ("", EIGHT_GPUS, "--micro_train_tokens 640 --loss_normalization batch --actor resident"):
        args = options(text)
        assert batches.check_sizes(args) == [] and verdicts(batches.check_batches(args)) == {GO}


@pytest.mark.parametrize(
    ("text", "measured", "repair"),
    [
        ("--train_batch_size 100", "100 is no multiple of micro-batch x ranks (64)", "--train_batch_size 64"),
        ("--train_batch_size 512", "--train_batch_size 512 above the 256 samples", "--train_batch_size 256"),
        (f"{UNEVEN} 2 --micro_rollout_batch_size 100", "train on 200, 56", "--micro_rollout_batch_size 8"),
        (f"{UNEVEN} 3 --train_batch_size 3", "train on 128, 128, 0", "--rollout_batch_size 33"),
    ],
)  # fmt: skip
def test_bad_batches_are_refused(text, measured, repair):
    refused(batches.check_batches(options(text)), measured, repair)


def test_gradients_that_are_left_over_are_a_warning():
    args = options("--train_batch_size 192 --micro_train_batch_size 64")
    refused(batches.check_batches(args), "leave 64 gradients over", "--rollout_batch_size", WARN)


@pytest.mark.parametrize("name", ["eval_steps", "save_steps", "logging_steps"])
def test_steps_of_zero_are_refused_before_the_trainer_divides_by_them(name):
    refused(batches.check_sizes(options(f"--{name} 0")), f"--{name} 0: the trainer divides by it", "leave it out")
    assert not batches.check_sizes(options(f"--{name} 1")) and not batches.check_sizes(options("--eval_steps -1"))


def test_actors_that_ring_attention_cannot_split_are_refused():
    args = options("--actor_num_gpus_per_node 3 --ring_attn_size 2")
    refused(batches.check_sizes(args), "3 actor GPUs cannot be split", "--ring_attn_size 1")


@settings(max_examples=300)
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


@settings(max_examples=200)
@given(prompts=st.integers(1, 64), n=st.integers(1, 8), micro=st.integers(1, 70), actors=st.integers(1, 9))
def test_every_sample_is_dealt_out_once_and_uneven_deals_are_refused(prompts, n, micro, actors):
    sizes = {"rollout_batch_size": prompts, "n_samples_per_prompt": n, "actors": actors}
    args = changed(micro_rollout_batch_size=micro, advantage_estimator="reinforce", **sizes)
    deal = batches.samples_by_rank(args)
    assert sum(deal) == prompts * n and len(deal) == actors
    uneven = any("wait for each other" in fault.measured for fault in batches.fault_lines(args))
    assert uneven == (len(set(deal)) > 1)


@settings(max_examples=300)
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
    asynchronous = options("--eval_dataset E.jsonl --eval_steps 4 --async_train --enable_vllm_is_correction")
    refused(batches.check_steps(asynchronous, 768), "no evaluation in the loop", "leave --async_train out", WARN)
    frozen = options("--freezing_actor_steps 100")
    refused(batches.check_steps(frozen, 768), "no update until then", "leave --freezing_actor_steps out", WARN)


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


def test_gpus_wanted_by_placement():
    assert batches.gpus_wanted(options()) == 2
    assert batches.gpus_wanted(options("--init_kl_coef 0.1 --separate_reference_model")) == 10
    assert batches.gpus_wanted(options("--colocate_all_models")) == 1
    assert batches.gpus_wanted(options("--advantage_estimator gae --critic_num_gpus_per_node 2")) == 4
