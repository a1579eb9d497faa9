"""One probe a patch: each fails when the patched lines are not the ones that run."""

import contextlib
import importlib.util
import json
import shutil
import sys
import types

import pytest
import torch
from deepspeed.accelerator import get_accelerator
from layouts import samples_generator
from ranks import run_module
from safetensors.torch import load_file

from rft.mxfp4_codec import decode
from rft.record.names import CLOCKS


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="flash-attn is installed")
def test_missing_flash_attn_is_named_when_called():
    from openrlhf.models import ring_attn_utils

    with pytest.raises(ModuleNotFoundError, match=r"flash_attn is not installed, and --packing_samples needs it"):
        ring_attn_utils.unpad_input(torch.zeros(1, 1), torch.ones(1, 1))


def test_prompts_carry_one_date(checkpoint, monkeypatch):
    """Also in a macro, as in gpt-oss's template."""
    from openrlhf.datasets import PromptDataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.chat_template = "{% macro day() %}{{ strftime_now('%Y-%m-%d') }}{% endmacro %}{{ day() }}"
    args = types.SimpleNamespace(input_key="input", label_key=None, apply_chat_template=True)
    strategy = types.SimpleNamespace(args=args, is_rank_0=lambda: False)

    def prompt() -> str:
        return PromptDataset([{"input": "1 + 1"}], tokenizer, strategy).prompts[0]

    monkeypatch.delenv("CHAT_DATE", raising=False)
    assert prompt() == "2025-08-05"
    monkeypatch.setenv("CHAT_DATE", "2026-02-28")
    assert prompt() == "2026-02-28"
    monkeypatch.setenv("CHAT_DATE", "today")
    assert prompt() not in ("2025-08-05", "2026-02-28")
    monkeypatch.setenv("CHAT_DATE", "28.2.2026")
    with pytest.raises(ValueError, match="wanted YYYY-MM-DD"):
        prompt()


def test_prompts_carry_the_effort_that_is_asked_for(checkpoint):
    """By the tiny model's Harmony template, whose own effort is low; one that does not write it is refused."""
    from openrlhf.datasets import PromptDataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def prompt(**effort) -> str:
        args = types.SimpleNamespace(input_key="input", label_key=None, apply_chat_template=True, **effort)
        strategy = types.SimpleNamespace(args=args, is_rank_0=lambda: False)
        return PromptDataset([{"input": "1 + 1"}], tokenizer, strategy).prompts[0]

    own = prompt()
    assert "Reasoning: low" in own and prompt(reasoning_effort=None) == own
    for effort in ("low", "medium", "high"):
        assert prompt(reasoning_effort=effort) == own.replace("Reasoning: low", f"Reasoning: {effort}")
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    assert prompt() == "1 + 1"
    with pytest.raises(ValueError, match="takes no reasoning_effort"):
        prompt(reasoning_effort="high")


def test_workers_know_the_places_of_their_run(monkeypatch):
    from openrlhf.cli import train_ppo_ray

    def init(runtime_env):
        sys.exit(runtime_env["env_vars"].get("METRICS_LOG_DIR", "not known"))

    monkeypatch.setattr(train_ppo_ray.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(train_ppo_ray.ray, "init", init)
    monkeypatch.setenv("METRICS_LOG_DIR", "/runs/this")
    with pytest.raises(SystemExit, match=r"^/runs/this$"):
        train_ppo_ray.train(types.SimpleNamespace())


def test_actor_loads_mxfp4_bit_exact(checkpoint, one_rank):
    """Under ZeRO-3 the experts are partitioned as soon as they are loaded, and gather to the checkpoint's values."""
    import deepspeed
    from openrlhf.models import Actor

    config = {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    actor = Actor(
        str(checkpoint), attn_implementation="eager", lora_rank=4, target_modules=["q_proj"], ds_config=config
    )
    held = {name: p for name, p in actor.model.named_parameters() if "experts" in name and name.endswith("_proj")}
    stored = load_file(checkpoint / "model.safetensors")
    assert len(held) == 4
    assert all(parameter.numel() == 0 and not parameter.requires_grad for parameter in held.values())
    with deepspeed.zero.GatheredParameters(list(held.values())):
        for name, parameter in held.items():
            key = name.removeprefix("base_model.model.")
            assert parameter.dtype == torch.bfloat16
            assert torch.equal(parameter.data, decode(stored[f"{key}_blocks"], stored[f"{key}_scales"]))


@pytest.mark.parametrize("stage", [2, 3])
def test_prepared_models_keep_their_rotary_frequencies(checkpoint, one_rank, tmp_path, stage):
    """Trained or evaluated, from MXFP4 or, where ZeRO-3 rounds them while the model is built, from bf16."""
    from openrlhf.models import Actor
    from openrlhf.utils.deepspeed import DeepspeedStrategy
    from spike_train import run_args
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    from rft.tiny.checkpoint import build_model

    build_model(seed=3).bfloat16().save_pretrained(tmp_path)
    args = run_args(str(checkpoint), zero_stage=stage, world_size=1, dynamic=False)
    strategy = DeepspeedStrategy(zero_stage=stage, micro_train_batch_size=2, train_batch_size=4, args=args)
    for source in (checkpoint, tmp_path):
        config, lora = strategy.get_ds_train_config(is_actor=True), {"lora_rank": 4, "target_modules": ["q_proj"]}
        trained = Actor(str(source), attn_implementation="eager", ds_config=config, **lora)
        optimizer = strategy.create_optimizer(trained, lr=1e-3, weight_decay=0.0)
        trained, *_ = strategy.prepare((trained, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer)))
        evaluated = Actor(str(source), attn_implementation="eager", ds_config=strategy.get_ds_eval_config())
        evaluated = strategy.prepare(evaluated)
        wanted, _ = ROPE_INIT_FUNCTIONS["yarn"](evaluated.model.module.config, "cpu")
        for model in (trained, evaluated):
            (rotary,) = (m for m in model.modules() if "inv_freq" in m._buffers)
            for found in (rotary.inv_freq, rotary.original_inv_freq):
                assert found.dtype == torch.float32
                assert found.device == torch.device(get_accelerator().current_device_name())
                assert torch.equal(found.cpu(), wanted)


def test_gpt_oss_blocks_are_leaves_without_router_logits(checkpoint):
    from deepspeed.utils import get_z3_leaf_modules
    from openrlhf.models import Actor

    for coefficient in (0, 0.01):
        actor = Actor(str(checkpoint), attn_implementation="eager", aux_loss_coef=coefficient)
        leaves = {type(module).__name__ for module in get_z3_leaf_modules(actor.model)}
        assert leaves == {"GptOssMLP"}
        assert actor.model.config.output_router_logits == bool(coefficient)


@pytest.mark.parametrize("options", [["--attn_implementation", "flash_attention_2"], ["--packing_samples"]])
def test_gpt_oss_with_flash_attention_is_refused_before_ray_starts(checkpoint, options):
    # Without engines the trainer's main has an assertion on packed samples, which would end it before a later check.
    stock = ["--pretrain", checkpoint, "--remote_rm_url", "none.py", "--vllm_num_engines", "0", "--actor", "eager"]
    # An address that Ray rejects at once: without the refusal a cluster would start here, and wait for devices.
    done = run_module("openrlhf.cli.train_ppo_ray", *stock, *options, environment={"RAY_ADDRESS": "nowhere"})
    assert done.returncode == 1, done.stdout
    assert "gpt-oss cannot be trained like this" in done.stdout
    assert done.stdout.rstrip().splitlines()[-1].startswith("  repair: --attn_implementation eager")
    assert "Traceback" not in done.stdout


def test_policy_loss_clamps_log_ratios_and_keeps_their_tails():
    from openrlhf.models import PolicyLoss

    loss_fn = PolicyLoss()
    mask = torch.tensor([[1, 1, 1, 0]])
    log_probs = torch.tensor([[-1.0, 99.0, -31.0, 500.0]], requires_grad=True)
    loss, *_ = loss_fn(log_probs, torch.full((1, 4), -1.0), torch.full((1, 4), -1.0), mask)
    loss.backward()
    assert loss.isfinite()
    assert log_probs.grad.isfinite().all()
    tails = {name: getattr(loss_fn, name) for name in ("log_ratio_raw_max", "log_ratio_max", "log_ratio_min")}
    assert tails == {"log_ratio_raw_max": 100.0, "log_ratio_max": 20.0, "log_ratio_min": -20.0}
    assert loss_fn.ratio_max == pytest.approx(torch.tensor(20.0).exp().item())
    assert (loss_fn.log_ratio_abs_p99, loss_fn.tokens_in_batch) == (20.0, 3)


CODE = """
from pathlib import Path

from transformers import GptOssConfig, GptOssForCausalLM, PreTrainedTokenizerFast

Path({mark!r}).touch()

class Config(GptOssConfig):
    model_type = "somebody_s"

class Model(GptOssForCausalLM):
    config_class = Config

class Tokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def with_code(checkpoint, tmp_path, monkeypatch):
    """A gpt-oss whose checkpoint brings its own classes along, and the file that they touch when imported."""
    place, mark = tmp_path / "somebody", tmp_path / "code-was-run"
    shutil.copytree(checkpoint, place)
    (place / "modeling.py").write_text(CODE.format(mark=str(mark)))
    classes = {"AutoConfig": "modeling.Config", "AutoModelForCausalLM": "modeling.Model"}
    config = json.loads((place / "config.json").read_text()) | {"model_type": "somebody_s", "auto_map": classes}
    (place / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((place / "tokenizer_config.json").read_text())
    tokenizer |= {"tokenizer_class": "Tokenizer", "auto_map": {"AutoTokenizer": [None, "modeling.Tokenizer"]}}
    (place / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.delenv("RFT_TRUST_REMOTE_CODE", raising=False)
    return place, mark


def test_code_of_a_checkpoint_is_not_run(with_code, monkeypatch):
    """By whatever reads it, actor, reward model, tokenizer; the engine is told the same."""
    from openrlhf.models import Actor, get_llm_for_sequence_regression
    from openrlhf.trainer.ray import vllm_engine
    from openrlhf.utils import get_tokenizer

    (place, mark), told = with_code, []
    handle = types.SimpleNamespace(remote=lambda **options: told.append(options))
    monkeypatch.setattr(vllm_engine, "LLMRayActor", types.SimpleNamespace(options=lambda **_: handle))
    with contextlib.suppress(AttributeError):  # what comes next talks to the engines
        vllm_engine.create_vllm_engines(1, 1, str(place), 0, False, True, True, 160, shared_pg=object())
    assert [options["trust_remote_code"] for options in told] == [False]
    for load in (
        lambda: get_tokenizer(str(place), None),
        lambda: Actor(str(place), attn_implementation="eager"),
        lambda: get_llm_for_sequence_regression(str(place), "reward", attn_implementation="eager"),
    ):
        with contextlib.suppress(Exception):
            load()
        assert not mark.exists(), "the checkpoint's code was run"
    monkeypatch.setenv("RFT_TRUST_REMOTE_CODE", "1")
    get_tokenizer(str(place), None)
    assert mark.exists()


def test_code_of_a_checkpoint_is_refused_before_ray_starts(with_code):
    place, mark = with_code
    options = ["--pretrain", place, "--remote_rm_url", "none.py", "--vllm_num_engines", "1"]
    done = run_module("openrlhf.cli.train_ppo_ray", *options, environment={"RAY_ADDRESS": "nowhere"})
    assert done.returncode == 1 and not mark.exists()
    last = done.stdout.rstrip().splitlines()[-1]
    assert last.startswith(f"error: {place}/config.json: found code that the checkpoint brings along (modeling.Config")
    assert "pass --trust_remote_code" in last
    trusting = run_module(
        "openrlhf.cli.train_ppo_ray", *options, "--trust_remote_code", environment={"RAY_ADDRESS": "nowhere"}
    )
    assert "found code" not in trusting.stdout and "nowhere" in trusting.stdout, "it went on to Ray"


def response(extra_logs: dict) -> dict:
    return {
        "prompt": "p", "label": "1", "observation_tokens": [1, 2, 3], "action_ranges": [(1, 3)], "reward": 1.0,
        "scores": 1.0, "rollout_log_probs": None, "truncated": False, "extra_logs": extra_logs,
    }  # fmt: skip


def test_extra_logs_keep_numbers_only():

    logs = {"good": torch.tensor([0.5]), "flag": True, "text": "boxed", "nothing": None, "bad": float("nan")}
    maker = types.SimpleNamespace(args=None)
    experience = samples_generator()._process_response_into_experience(maker, response(logs))
    assert experience.info["good"].tolist() == [0.5]
    assert experience.info["flag"].tolist() == [1.0]
    assert "text" not in experience.info
    # Keys must not depend on the sample: a batch is merged by the keys of its first.
    assert experience.info["nothing"].isnan().all()
    assert experience.info["bad"].isnan().all()


def test_evaluation_draws_its_own_number_of_samples(monkeypatch):

    asked = []
    engine = types.SimpleNamespace(
        get_num_unfinished_requests=types.SimpleNamespace(remote=lambda: 0),
        generate_responses=types.SimpleNamespace(remote=lambda **call: asked.append(call["num_samples"])),
    )
    generator = object.__new__(samples_generator())
    generator.args = types.SimpleNamespace(
        enable_vllm_is_correction=False, n_samples_per_prompt=8, rollout_seeds="request", seed=0, reward_timeout=60
    )
    generator.vllm_engines, generator.tokenizer = [engine], None
    monkeypatch.setattr("ray.get", list)
    generator._dispatch_prompts_to_vllm(["a", "b"], ["1", "2"], n_samples_per_prompt=1)
    generator._dispatch_prompts_to_vllm(["c"], ["3"])
    assert asked == [1, 1, 8]


def test_logs_of_a_step_become_one_json_line(tmp_path, monkeypatch):
    """Without a run, which the probes of other patches share: they read this very file."""
    from openrlhf.trainer.ppo_trainer import BasePPOTrainer

    monkeypatch.setenv("METRICS_LOG_DIR", str(tmp_path))
    trainer = types.SimpleNamespace(args=types.SimpleNamespace(logging_steps=2, save_steps=2))
    BasePPOTrainer.save_logs_and_checkpoints(trainer, 1, {"reward": 0.5, "text": "boxed"})
    assert [path.name for path in tmp_path.iterdir()] == ["training_metrics.jsonl"]
    (line,) = (tmp_path / "training_metrics.jsonl").read_text().splitlines()
    assert {name: value for name, value in json.loads(line).items() if name not in CLOCKS} == {
        "global_step": 1,
        "reward": 0.5,
    }
