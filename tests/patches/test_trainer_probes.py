"""Probes of what takes a whole training to show fully: that the patched lines run; tests/stack has the rest."""

import asyncio
import inspect
import json
import os
import types
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from rft.record.names import CLOCKS


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


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("recomputed", [False, True])
def test_a_backward_pass_looks_at_each_parameter_a_few_times(one_rank, monkeypatch, stage, recomputed):
    """Also where blocks are recomputed, each in a pass of its own; the weights are those of upstream's counts."""
    import deepspeed
    from deepspeed.runtime.utils import count_used_parameters_in_backward
    from deepspeed.runtime.zero import stage3, stage_1_and_2
    from openrlhf.utils.deepspeed import DeepspeedStrategy
    from torch.utils.checkpoint import checkpoint

    blocks, layers, looks = 6, 4, []
    grad_fn = torch.autograd.graph._get_grad_fn_or_grad_acc

    class Chain(torch.nn.Sequential):
        def forward(self, x):
            for block in self:
                x = checkpoint(block, x, use_reentrant=True) if recomputed else block(x)
            return x

    def trained(count_each_time: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        linear = [[torch.nn.Linear(8, 8, bias=False) for _ in range(layers)] for _ in range(blocks)]
        model = Chain(*(torch.nn.Sequential(*block) for block in linear)).bfloat16()
        args = types.SimpleNamespace(param_dtype="bf16", zpg=1, offload=False, local_rank=-1)
        strategy = DeepspeedStrategy(zero_stage=stage, micro_train_batch_size=1, train_batch_size=1, args=args)
        optimizer = strategy.create_optimizer(model, lr=0.25, weight_decay=0.0)
        engine, *_ = strategy.prepare((model, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1)))
        if count_each_time:
            for zero in (stage_1_and_2, stage3):
                monkeypatch.setattr(zero, "count_used_parameters_in_backward", count_used_parameters_in_backward)
        inputs = torch.ones(1, 8, dtype=torch.bfloat16, requires_grad=True)
        for _ in range(2):
            engine.backward(engine(inputs).float().sum())
            engine.step()
        with deepspeed.zero.GatheredParameters(list(engine.parameters())):
            return [parameter.detach().clone() for parameter in engine.parameters()]

    with monkeypatch.context() as watched:
        watched.setattr(torch.autograd.graph, "_get_grad_fn_or_grad_acc", lambda t: (looks.append(1), grad_fn(t))[1])
        found = trained(count_each_time=False)
    steps, passes = 2, 1 + blocks * recomputed
    assert 0 < len(looks) <= steps * passes * blocks * layers
    assert all(map(torch.equal, found, trained(count_each_time=True)))


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


def test_max_samples_leaves_the_evaluation_sets_whole(trainer):
    from openrlhf.trainer.ppo_trainer import prepare_datasets

    trainer.args.max_samples = 2
    training, evaluation, steps = prepare_datasets(trainer.strategy, None)
    assert (len(training), len(evaluation), steps) == (2, 3, 2)


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
        head_dtype="model",
    )  # fmt: skip
    strategy = DeepspeedStrategy(zero_stage=2, micro_train_batch_size=2, train_batch_size=4, args=args)
    policy = object.__new__(PolicyModelActor.__ray_metadata__.modified_class)
    policy.init_model_from_pretrained(strategy, str(checkpoint), max_steps=8)
    rates = []
    for _ in range(8):
        policy.actor_scheduler.step()
        rates += policy.actor_scheduler.get_last_lr()
    assert rates == [0.0] * 8


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """A PPOTrainer of three steps whose rollouts and training are recorded; evaluation sets of 2 and 1 problems."""
    from openrlhf.trainer.ppo_trainer import PPOTrainer, prepare_datasets
    from openrlhf.utils.deepspeed import DeepspeedStrategy

    monkeypatch.setattr("torch.distributed.is_initialized", lambda: False)
    monkeypatch.setenv("METRICS_LOG_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("RFT_RUN_DIR", raising=False)
    monkeypatch.delenv("SAMPLES_LOG_DIR", raising=False)
    monkeypatch.setattr("ray.get", lambda refs: refs)
    for name, prompts in (("train", "abc"), ("probe_ood", "ab"), ("other", "a")):
        lines = [json.dumps({"input": p, "label": "1", "datasource": "math"}) + "\n" for p in prompts]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    args = types.SimpleNamespace(
        prompt_data=str(tmp_path / "train.jsonl"), prompt_data_probs=None, prompt_split="train", seed=0, max_samples=9,
        input_key="input", label_key="label", input_template=None, apply_chat_template=False, eval_split="train",
        eval_dataset=f"{tmp_path}/probe_ood.jsonl,{tmp_path}/other.jsonl", n_samples_per_prompt=1, train_batch_size=1,
        num_episodes=1, max_epochs=1, param_dtype="bf16", prompt_order="shuffled", eval_temperature=0.0,
        eval_n_samples_per_prompt=1, eval_steps=2, skip_base_eval=False, dynamic_filtering=False, load_checkpoint=False,
        ckpt_path=str(tmp_path / "checkpoints"), save_path=str(tmp_path / "saved"), stop_rules="off", lora_rank=2,
        actor_learning_rate=1e-3, freezing_actor_steps=-1, logging_steps=1, save_steps=99, vllm_enable_sleep=False,
        init_adapter=None, dataloader_num_workers=0,
    )  # fmt: skip
    made = object.__new__(PPOTrainer.__ray_metadata__.modified_class)
    made.args, made.tokenizer, made.calls = args, None, []
    made.strategy = DeepspeedStrategy(seed=0, args=args)
    made.prompts_dataloader, made.eval_dataloader, _ = prepare_datasets(made.strategy, None)
    made.generate_kwargs = {"temperature": 1.0}
    # upstream's own best, from 0.9.10
    made.best_eval_metric_key, made.best_eval_metric_value, made._latest_eval_metric_value = "", float("-inf"), None
    made.wandb_logger = made.tensorboard_logger = made.critic_model_group = None
    made.right = iter([])

    def samples(**kwargs):
        made.calls.append("evaluate")
        rewards = next(made.right)
        prompts = [prompt for prompt in "aba" for _ in range(len(rewards) // 3)]
        return [
            types.SimpleNamespace(
                rewards=torch.tensor([reward]), info={}, prompts=[prompt], response_length=None, truncated=None
            )
            for reward, prompt in zip(rewards, prompts, strict=True)
        ]

    def rollout(**kwargs):
        made.calls.append("rollout")
        return [], None, 1, made.calls.count("rollout") > 3

    def save(method_name, save_path):
        Path(save_path).mkdir(parents=True)
        made.calls.append(f"{method_name} {Path(save_path).name}")
        return []

    made.samples_generator = types.SimpleNamespace(generate_eval_samples=samples, generate_samples=rollout)
    made.train_step = lambda rollouts, step: ({"policy_loss": 0.5 if step < 1 else float("nan")}, step + 1)
    made.actor_model_group = types.SimpleNamespace(async_run_method=save)
    return made


def evaluations(trainer) -> list[dict]:
    """The evaluations logged, without when."""
    file = Path(os.environ["METRICS_LOG_DIR"], "eval_metrics.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return [{name: value for name, value in record.items() if name not in CLOCKS} for record in records]


def test_evaluations_are_named_by_dataset_and_mode_and_leave_no_trace(trainer):
    """The two sets share a problem, which counts in both."""
    before = torch.get_rng_state()
    trainer.right = iter([[1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]])
    trainer.evaluate(5, temperature=0.0, n_samples_per_prompt=1)
    trainer.evaluate(6, temperature=0.6, n_samples_per_prompt=2)
    assert torch.equal(torch.get_rng_state(), before)
    problems = {"eval_probe_ood_problems": 2.0, "eval_other_problems": 1.0}
    greedy = {"eval_probe_ood_greedy_pass@1": 0.5, "eval_other_greedy_pass@1": 1.0}
    sampling = {
        "eval_probe_ood_sampling_pass@2": 1.0, "eval_probe_ood_sampling_avg@2": 0.75,
        "eval_other_sampling_pass@2": 0.0, "eval_other_sampling_avg@2": 0.0,
    }  # fmt: skip
    assert evaluations(trainer) == [
        {"global_step": 5, **greedy, **problems},
        {"global_step": 6, **sampling, **problems},
    ]


@pytest.mark.parametrize("skip", [False, True])
def test_the_base_model_is_evaluated_before_the_first_rollout(trainer, skip):
    trainer.args.skip_base_eval = skip
    trainer.right = iter([[0.0, 0.0, 0.0]] * 2)
    trainer.fit()
    assert trainer.calls[:2] == (["rollout", "rollout"] if skip else ["evaluate", "rollout"])
    assert [row["global_step"] for row in evaluations(trainer)] == ([2] if skip else [0, 2])


def test_the_adapter_of_the_best_evaluation_is_kept(trainer, tmp_path):
    trainer.right = iter([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    named = []
    for step in (0, 2, 4, 6, 8):
        trainer.evaluate(step, temperature=0.0, n_samples_per_prompt=1)
        assert (tmp_path / "run" / "best.json").is_file()
        named.append(json.loads((tmp_path / "run" / "best.json").read_text()))
    assert [row["global_step"] for row in named] == [0, 2, 2, 2, 8]
    assert named[0]["checkpoint"] is None  # the base model
    folder = tmp_path / "checkpoints" / "best_step8_hf"
    wanted = {"global_step": 8, "metric": "eval_probe_ood_greedy_pass@1", "value": 1.0, "checkpoint": str(folder)}
    assert named[-1] == wanted
    assert [call for call in trainer.calls if call != "evaluate"] == [
        "save_model best_step2_hf", "save_model best_step8_hf"
    ]  # fmt: skip
    assert sorted((tmp_path / "checkpoints").iterdir()) == [tmp_path / "checkpoints" / "best.json", folder]


@pytest.fixture
def best_of_another_run(trainer, tmp_path):
    """A trainer whose checkpoint folder holds the best of a run with another run directory, and an older adapter."""
    trainer.right = iter([[1.0, 0.0, 0.0]])
    trainer.evaluate(2, temperature=0.0, n_samples_per_prompt=1)
    (tmp_path / "run" / "best.json").unlink()
    folder = tmp_path / "checkpoints"
    (folder / "best_step1_hf").mkdir()
    return folder


@pytest.mark.parametrize(
    ("step", "right", "kept", "named"),
    [
        (4, [0.0, 1.0, 0.0], ["best_step1_hf", "best_step2_hf"], 2),  # no better than what was resumed
        (4, [1.0, 1.0, 0.0], ["best_step1_hf", "best_step4_hf"], 4),
        (0, [1.0, 1.0, 0.0], ["best_step1_hf", "best_step2_hf"], 0),
    ],
)
def test_a_resumed_run_removes_only_what_it_surpasses(trainer, best_of_another_run, tmp_path, step, right, kept, named):
    trainer.args.load_checkpoint = True
    trainer.right = iter([right])
    trainer.evaluate(step, temperature=0.0, n_samples_per_prompt=1)
    assert sorted(path.name for path in best_of_another_run.glob("best_step*")) == kept
    for place in (tmp_path / "run", best_of_another_run):
        assert json.loads((place / "best.json").read_text())["global_step"] == named


def test_a_run_that_begins_anew_removes_nothing_of_another(trainer, best_of_another_run):
    trainer.right = iter([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    for step in (5, 6):
        trainer.evaluate(step, temperature=0.0, n_samples_per_prompt=1)
    assert sorted(path.name for path in best_of_another_run.glob("best_step*")) == [
        "best_step1_hf", "best_step2_hf", "best_step6_hf"
    ]  # fmt: skip


def test_the_actor_saves_where_it_is_told_to():
    from openrlhf.trainer.ray.ppo_actor import PolicyModelActor

    saved = []
    policy = object.__new__(PolicyModelActor.__ray_metadata__.modified_class)
    policy.actor, policy.tokenizer = "actor", "tokenizer"
    policy.strategy = types.SimpleNamespace(
        args=types.SimpleNamespace(enable_ema=False, save_path="saved"), save_model=lambda *a: saved.append(a)
    )
    policy.save_model()
    assert "save_path" in inspect.signature(policy.save_model).parameters
    policy.save_model(save_path="elsewhere")
    assert saved == [("actor", "tokenizer", "saved"), ("actor", "tokenizer", "elsewhere")]


@pytest.mark.parametrize(("rules", "steps"), [("default", 2), ("default,-not_finite", 3), ("off", 3)])
def test_a_rule_ends_the_training_after_the_step(trainer, tmp_path, rules, steps):
    """The second step's loss is no number."""
    from rft.hooks import early_stop

    early_stop._said.clear()
    trainer.args.stop_rules, trainer.args.eval_steps = rules, float("inf")
    trainer.actor_model_group = None
    stopped = trainer.fit()
    assert len((tmp_path / "run" / "training_metrics.jsonl").read_text().splitlines()) == steps
    decisions = tmp_path / "run" / "decisions.jsonl"
    if rules == "off":
        assert stopped is None and not decisions.exists()
        return
    (decision,) = map(json.loads, decisions.read_text().splitlines())
    assert (decision["global_step"], decision["rule"]) == (2, "not_finite")
    assert decision["action"] == ("stop" if rules == "default" else "watch")
    assert (stopped or {}).get("rule") == ("not_finite" if rules == "default" else None)


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """A function that runs the driver on a training which returns what it is given; the methods called of actors."""
    from openrlhf.cli import train_ppo_ray
    from openrlhf.trainer import ppo_trainer

    calls = []

    class Handle:
        """Every remote thing that `train` makes; calls of its methods are kept."""

        def __init__(self, *args, **kwargs):
            pass

        def __getattr__(self, name):
            def call(*args, **kwargs):
                calls.append(name)
                return [name]

            call.remote = lambda *args, **kwargs: name
            return call

        remote = classmethod(lambda cls, *args, **kwargs: cls())

    args = types.SimpleNamespace(
        colocate_actor_ref=False, colocate_all_models=False, vllm_num_engines=0, actor_num_nodes=1, ring_attn_size=1,
        actor_num_gpus_per_node=1, ds_tensor_parallel_size=1, init_kl_coef=0, critic_pretrain=None, remote_rm_url=["r"],
        async_train=False, pretrain="p", prompt_max_len=1, generate_max_len=1, max_len=None, temperature=1, top_p=1,
        reward_pretrain=None, save_path="saved",
    )  # fmt: skip
    monkeypatch.setenv("METRICS_LOG_DIR", str(tmp_path))
    monkeypatch.delenv("RFT_RUN_DIR", raising=False)
    (tmp_path / "run.json").write_text('{"rft": "0.1.0"}')
    monkeypatch.setattr(ppo_trainer, "PPOTrainer", Handle)
    monkeypatch.setattr(train_ppo_ray, "RayActorGroup", Handle)
    monkeypatch.setattr(train_ppo_ray, "get_strategy", lambda args: types.SimpleNamespace(print=lambda args: None))
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.nodes", lambda: [{"NodeID": "n", "Alive": True}])
    answers = {"get_max_steps": 8}
    monkeypatch.setattr(train_ppo_ray.watch, "get", lambda refs, *_, **__: [answers.get(ref) for ref in refs])

    def run(stopped: dict | None) -> None:
        answers["fit"] = stopped
        train_ppo_ray.train(args)

    return run, calls


@pytest.mark.parametrize("stopped", [None, {"global_step": 4, "rule": "disk", "reason": "full", "change": "free some"}])
def test_a_stopped_run_saves_and_exits_with_status_10(driver, tmp_path, capsys, stopped):
    train, calls = driver
    if stopped is None:
        train(stopped)
        assert json.loads((tmp_path / "run.json").read_text()) == {"rft": "0.1.0"}
        return
    with pytest.raises(SystemExit) as exit:
        train(stopped)
    assert exit.value.code == 10
    assert calls[-1] == "async_save_model"
    record = {"global_step": 4, "rule": "disk", "reason": "full", "exit_status": 10}
    assert json.loads((tmp_path / "run.json").read_text()) == {"rft": "0.1.0", "stopped": record}
    assert "stopped: rule disk at step 4; the model is saved in saved" in capsys.readouterr().out


@pytest.mark.parametrize("kept", [True, False])
def test_a_run_that_is_asked_to_stop_saves_after_its_step(trainer, tmp_path, kept):
    """One that keeps nothing to resume from goes on."""
    trainer.right = iter([[0.0, 0.0, 0.0]] * 2)
    trainer.args.disable_ds_ckpt, trainer.args.async_train = not kept, False
    saved = []

    def save(method_name, tag, client_states, **_):
        saved.append((method_name, tag, client_states["global_step"]))
        return []

    trainer.actor_model_group = types.SimpleNamespace(async_run_method=save)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "save_and_stop").write_text("SIGUSR1\n")
    stopped = trainer.fit()
    steps = len((tmp_path / "run" / "training_metrics.jsonl").read_text().splitlines())
    assert (steps, saved) == ((1, [("save_checkpoint", "global_step1", 1)]) if kept else (3, []))
    assert stopped == ({"global_step": 1, "rule": "asked_to_stop", "reason": "SIGUSR1"} if kept else None)


def test_a_run_that_was_asked_to_stop_exits_with_status_11(driver, tmp_path):
    """The model is not saved again: it is in the checkpoint, and time may be short."""
    train, calls = driver
    stopped = {"global_step": 4, "rule": "asked_to_stop", "reason": "SIGTERM"}
    with pytest.raises(SystemExit) as exit:
        train(stopped | {"change": "of a rule"})
    assert exit.value.code == 11 and "async_save_model" not in calls
    assert json.loads((tmp_path / "run.json").read_text())["stopped"] == stopped | {"exit_status": 11}


def test_a_resumed_run_measures_the_base_before_it_syncs(trainer):
    calls = []
    state = {"episode": 1, "global_step": 4, "total_consumed_prompts": 4, "data_loader_state_dict": {}}
    trainer.init_checkpoint_states = lambda: state
    trainer.vllm_engines = [
        types.SimpleNamespace(canary_shift=types.SimpleNamespace(remote=lambda: calls.append("measure")))
    ]
    trainer.broadcast_to_vllm = lambda: calls.append("sync")
    trainer.fit()
    assert calls == ["measure", "sync"]


def test_a_run_from_an_adapter_syncs_before_it_evaluates(trainer):
    """The base is measured, the engines get the adapter, and only then comes the first evaluation and rollout."""
    trainer.args.init_adapter, trainer.right = "adapter", iter([[0.0, 0.0, 0.0]] * 2)
    trainer.vllm_engines = [
        types.SimpleNamespace(canary_shift=types.SimpleNamespace(remote=lambda: trainer.calls.append("measure")))
    ]
    trainer.broadcast_to_vllm = lambda: trainer.calls.append("sync")
    trainer.fit()
    assert trainer.calls[:4] == ["measure", "sync", "evaluate", "rollout"]


def test_engines_answer_with_their_canary(monkeypatch):
    from openrlhf.trainer.ray.vllm_engine import LLMRayActor

    async def measured(engine):
        return 0.5

    monkeypatch.setattr("rft.hooks.canary.shift", measured)
    actor = object.__new__(LLMRayActor.__ray_metadata__.modified_class)
    assert hasattr(actor, "canary_shift")
    assert asyncio.run(actor.canary_shift()) == 0.5
