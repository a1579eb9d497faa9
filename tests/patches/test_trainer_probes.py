"""Probes of what takes a whole training to show fully: that the patched lines run, in seconds; tests/stack has the rest."""

import asyncio
import json
import os
import types
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model


def test_checkpoints_leave_the_base_out_and_bring_the_random_state_back(one_rank, tmp_path):
    import deepspeed
    from openrlhf.utils.deepspeed import DeepspeedStrategy

    base = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 64, bias=False))
    model = get_peft_model(base.bfloat16(), LoraConfig(r=2, target_modules=["0"]))
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    trainable = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(trainable), config=config)
    strategy = DeepspeedStrategy(args=types.SimpleNamespace(param_dtype="bf16", zpg=1, offload=False))
    for step in (1, 2, 3):
        strategy.save_ckpt(engine, str(tmp_path), f"global_step{step}", 2, 1000, {"global_step": step})
    drawn = torch.rand(4)
    assert sorted(path.name for path in tmp_path.glob("global_step*")) == ["global_step2", "global_step3"]
    (states,) = Path(tmp_path, "global_step3").glob("*model_states.pt")
    saved = torch.load(states, weights_only=False)["module"]
    assert saved and all("lora_" in name for name in saved)
    torch.manual_seed(12345)
    _, client = strategy.load_ckpt(engine, str(tmp_path))
    assert client["global_step"] == 3
    assert torch.equal(torch.rand(4), drawn)


class Engine:
    """The handle of a rollout engine that keeps the calls it gets."""

    def __init__(self):
        self.calls = []
        self.get_num_unfinished_requests = types.SimpleNamespace(remote=lambda: 0)
        self.generate_responses = types.SimpleNamespace(remote=lambda **call: self.calls.append(call))


def test_each_prompt_takes_its_own_seeds_along(monkeypatch):
    from openrlhf.trainer.ppo_utils.experience_maker import SamplesGenerator

    engine, generator = Engine(), object.__new__(SamplesGenerator)
    generator.args = types.SimpleNamespace(
        enable_vllm_is_correction=False, n_samples_per_prompt=8, rollout_seeds="request", seed=7
    )
    generator.vllm_engines, generator.tokenizer = [engine], None
    monkeypatch.setattr("ray.get", list)
    generator._dispatch_prompts_to_vllm(["a", "b", "a"], ["1", "2", "3"], first_index=5, global_step=2)
    wanted = [{"prompt_index": n, "seed": 7, "step": 2, "occurrence": seen} for n, seen in ((5, 0), (6, 0), (7, 1))]
    assert [call.get("place") for call in engine.calls] == wanted


def test_responses_carry_the_canary(monkeypatch):
    from openrlhf.trainer.ray.vllm_engine import LLMRayActor
    from vllm import SamplingParams

    async def measured(engine):
        return 0.25

    async def execute(**call):
        return {"extra_logs": {}}

    monkeypatch.setattr("rft.hooks.canary.shift", measured)
    actor = object.__new__(LLMRayActor.__ray_metadata__.modified_class)
    actor.executor = types.SimpleNamespace(execute=execute)
    (response,) = asyncio.run(actor.generate_responses("p", "1", SamplingParams(), 16, None))
    assert response["extra_logs"].get("sync_canary_shift") == 0.25


def test_full_determinism_reaches_the_engine(monkeypatch):
    from openrlhf.trainer.ray.vllm_engine import LLMRayActor
    from packaging import version

    for name in ("RFT_BATCH_INVARIANT_CPU", "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_ALLOW_INSECURE_SERIALIZATION"):
        monkeypatch.setenv(name, "before")
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    actor = object.__new__(LLMRayActor.__ray_metadata__.modified_class)
    for switch, wanted in ((False, "before"), (True, "1")):
        actor._configure_vllm_env(version, types.SimpleNamespace(__version__="0.15.1"), switch)
        assert os.environ["RFT_BATCH_INVARIANT_CPU"] == wanted


@pytest.fixture
def prompts_in_order(tmp_path, monkeypatch):
    """A function from seed and --prompt_order to the order in which 40 prompts, numbered in their file, are trained."""
    from openrlhf.trainer.ppo_trainer import prepare_datasets
    from openrlhf.utils.deepspeed import DeepspeedStrategy

    monkeypatch.setattr("torch.distributed.is_initialized", lambda: False)  # the driver is no rank
    lines = [json.dumps({"input": f"prompt {n}", "label": str(n)}) for n in range(40)]
    (tmp_path / "prompts.jsonl").write_text("".join(line + "\n" for line in lines))

    def order(seed: int, prompt_order: str) -> list[int]:
        args = types.SimpleNamespace(
            prompt_data=str(tmp_path / "prompts.jsonl"), prompt_data_probs=None, prompt_split="train", seed=seed,
            max_samples=40, input_key="input", label_key="label", input_template=None, apply_chat_template=False,
            eval_dataset=None, n_samples_per_prompt=1, train_batch_size=1, num_episodes=1, max_epochs=1,
            param_dtype="bf16", prompt_order=prompt_order,
        )  # fmt: skip
        torch.seed()  # whatever happened before must not matter
        loader, *_ = prepare_datasets(DeepspeedStrategy(seed=seed, args=args), tokenizer=None)
        return [int(label) for _, _, (label,) in loader]

    with torch.random.fork_rng(devices=[]):
        yield order


def test_prompts_are_shuffled_by_the_seed(prompts_in_order):
    orders = [prompts_in_order(seed, "shuffled") for seed in (3, 3, 4)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(40))


def test_prompts_keep_the_order_of_their_file(prompts_in_order):
    assert prompts_in_order(3, "file") == list(range(40))


def test_learning_rate_of_zero_stays_zero(one_rank, checkpoint):
    """The control run, which trains nothing."""
    from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
    from openrlhf.utils.deepspeed import DeepspeedStrategy
    from spike_train import run_args

    args = run_args(str(checkpoint), zero_stage=2, world_size=1, dynamic=False)
    vars(args).update(
        actor_learning_rate=0.0, adam_betas=(0.9, 0.95), ckpt_path="none", deepspeed_enable_sleep=False,
        disable_ds_ckpt=True, disable_fast_tokenizer=False, ema_beta=0.99, enable_ema=False, eps_clip=0.2, l2=0.0,
        load_checkpoint=False, lr_scheduler="cosine_with_min_lr", lr_warmup_ratio=0.25, save_hf_ckpt=False,
    )  # fmt: skip
    strategy = DeepspeedStrategy(zero_stage=2, micro_train_batch_size=2, train_batch_size=4, args=args)
    policy = object.__new__(PolicyModelActor.__ray_metadata__.modified_class)
    policy.init_model_from_pretrained(strategy, str(checkpoint), max_steps=8)
    rates = []
    for _ in range(8):
        policy.actor_scheduler.step()
        rates += policy.actor_scheduler.get_last_lr()
    assert rates == [0.0] * 8
