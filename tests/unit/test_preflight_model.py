"""Preflight: the model, what it can be trained with, the reward, the checkpoint to go on from."""

from preflight_options import CONFIG_20B, CONFIG_120B, options, refused, verdicts

from rft.options import command
from rft.runs.preflight import memory, model
from rft.runs.preflight.lines import GO, WARN, gigabytes


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
    checkpointing = options("--gradient_checkpointing")
    refused(model.check_attention(checkpointing, CONFIG_20B), "fails under ZeRO-3", "_use_reentrant")
    reentrant = options("--gradient_checkpointing --gradient_checkpointing_use_reentrant")
    assert verdicts(model.check_attention(reentrant, CONFIG_20B)) == {GO}


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
        refused(model.check_reward(args), measured, "fix the file" if "syntax" in measured else "def reward_func")
    file.write_text("raise RuntimeError\ndef reward_func(queries, prompts, labels): ...")
    assert verdicts(model.check_reward(args)) == {GO}
    assert "not checked" in model.check_reward(options("--remote_rm_url http://host/reward"))[0].measured
    args.remote_rm_url = None
    refused(model.check_reward(args), "neither a reward function", "--remote_rm_url FILE.py")


def test_lora():
    assert verdicts(model.check_lora(options())) == {GO}
    refused(model.check_lora(options("--lora_rank 0")), "all weights are trained", "--lora_rank 32", WARN)
    refused(model.check_lora(options("--target_modules q_proj gate_up")), "targets gate_up", "v_proj o_proj", WARN)
    everything = command.parse(["-m", command.MODULE, "--lora_rank", "8"])
    refused(model.check_lora(everything), "targets all-linear", "--target_modules q_proj", WARN)


def test_lengths():
    assert verdicts(model.check_lengths(options(), CONFIG_20B, 90)) == {GO}
    short = CONFIG_20B | {"max_position_embeddings": 128}
    refused(
        model.check_lengths(options(), short, None), "96 + 64 tokens, but the model has 128", "--generate_max_len 32"
    )
    if hasattr(options(), "max_len"):  # no option since 0.9.10
        refused(
            model.check_lengths(options("--max_len 100"), CONFIG_20B, None), "below 160 tokens", "leave --max_len out"
        )
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
