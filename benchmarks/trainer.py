"""A DeepSpeed ZeRO-3 trainer with LoRA in this process, as OpenRLHF makes it, over weights that nobody trained."""

import os
import socket
import types

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from openrlhf.models import Actor
from openrlhf.utils.deepspeed import DeepspeedStrategy
from peft import LoraConfig, get_peft_model
from transformers import GptOssConfig, GptOssForCausalLM

from benchmarks.checkpoint import PROJECTIONS, projection_shapes
from rft.actor.meta import no_init_weights
from rft.hooks import lora_exact
from rft.hooks.lora_sync import ADAPTER, lora_layers

UPDATE_SHARE = 0.1  # size of a random adapter's update, relative to the weights


def whole_model(config: dict) -> torch.nn.Module:
    """gpt-oss in bf16 on the accelerator, weights not set: a sync never reads them."""
    plain = GptOssConfig(**{key: value for key, value in config.items() if key != "quantization_config"})
    with torch.device(get_accelerator().current_device_name()), no_init_weights():
        return GptOssForCausalLM._from_config(plain, attn_implementation="eager", torch_dtype=torch.bfloat16)


def attention_only(config: dict) -> torch.nn.Module:
    """The attention projections of every layer under gpt-oss's names, and nothing else: 1.9 GB at 120b, not 234."""
    place = {"bias": False, "dtype": torch.bfloat16, "device": get_accelerator().current_device_name()}
    layers = torch.nn.ModuleList()
    for _ in range(config["num_hidden_layers"]):
        linear = {n: torch.nn.Linear(i, o, **place) for n, (o, i) in projection_shapes(config).items()}
        layers.append(torch.nn.ModuleDict({"self_attn": torch.nn.ModuleDict(linear)}))
    return torch.nn.ModuleDict({"model": torch.nn.ModuleDict({"layers": layers})})


def with_lora(model: torch.nn.Module, rank: int) -> torch.nn.Module:
    """The model with LoRA on q, k, v and o, alpha twice the rank, computing as OpenRLHF's patched actor does."""
    found = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(PROJECTIONS)))
    lora_exact.install(found)
    return found


def alone() -> None:
    """Set the environment of the one rank of a process group, at a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def zero3_engine(model: torch.nn.Module) -> deepspeed.DeepSpeedEngine:
    """DeepSpeed's engine of a PEFT model: bf16, ZeRO-3, one rank, OpenRLHF's own settings and optimizer."""
    alone()
    args = types.SimpleNamespace(param_dtype="bf16", local_rank=-1, zpg=1)
    strategy = DeepspeedStrategy(
        max_norm=1.0, micro_train_batch_size=1, train_batch_size=1, zero_stage=3, args=args
    )  # fmt: skip
    strategy.setup_distributed()
    actor = Actor(model)
    optimizer = strategy.create_optimizer(actor, lr=1e-4, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    actor, *_ = strategy.prepare((actor, optimizer, scheduler), is_rlhf=True)
    return actor.model


@torch.no_grad()
def randomize_adapter(model: torch.nn.Module, seed: int, first_update: float | None = None) -> None:
    """Give every A and B of a PEFT model (gathered, if ZeRO-3 has partitioned it) values drawn from `seed` alone.

    The update then has about `UPDATE_SHARE` of the size of weights drawn with standard deviation 1/sqrt(inputs). With
    `first_update`, a learning rate, B is what Adam's first step makes of 0: that rate with either sign.
    """
    for index, (_, layer) in enumerate(lora_layers(model)):
        a, b = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
        generator = torch.Generator(a.device).manual_seed(1000 * seed + index)
        rank = a.shape[0]
        a.data.normal_(0, a.shape[1] ** -0.5, generator=generator)
        b.data.normal_(0, UPDATE_SHARE / (layer.scaling[ADAPTER] * rank**0.5), generator=generator)
        if first_update is not None:
            b.data.sign_().mul_(first_update)


def step_adapter(engine: deepspeed.DeepSpeedEngine, step: int, first_update: float | None = None) -> None:
    """What an optimizer step leaves behind, without forward and backward: another adapter (see `randomize_adapter`),
    one more step."""
    trainable = [p for p in engine.module.parameters() if p.requires_grad]
    with deepspeed.zero.GatheredParameters(trainable, modifier_rank=0):
        randomize_adapter(engine.module, seed=step, first_update=first_update)
    engine.global_steps = step
    get_accelerator().synchronize()
