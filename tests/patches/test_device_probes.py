"""Probes of devices and memory: no line asks for CUDA, nothing needs a compiler, offloading reaches DeepSpeed."""

import ast
import importlib
import inspect
import queue
import socket
import sys
import threading
import types

import pytest
import torch
from deepspeed.accelerator import get_accelerator
from peft import LoraConfig, get_peft_model

# The modules of the Ray GRPO path that upstream writes for CUDA alone.
MODULES = (
    "models.ring_attn_utils",
    "trainer.ppo_utils.replay_buffer",
    "trainer.ray.launcher",
    "trainer.ray.ppo_actor",
    "trainer.ray.ppo_critic",
    "trainer.ray.vllm_worker_wrap",
    "utils.deepspeed.deepspeed",
    "utils.deepspeed.deepspeed_utils",
    "utils.distributed_util",
)
NEEDS_CUDA = {"update_weight_cuda_ipc", "stateless_init_process_group"}  # the first by nature, the other asks whether


def cuda_lines(module) -> list[str]:
    """Lines of an imported module, outside of `NEEDS_CUDA`, that call something of `torch.cuda` or name the device."""
    tree = ast.parse(inspect.getsource(module))
    skipped = {id(n) for f in ast.walk(tree) if getattr(f, "name", None) in NEEDS_CUDA for n in ast.walk(f)}
    found = []
    for node in ast.walk(tree):
        called = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch.cuda"
        named = isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.split(":")[0] == "cuda"
        if (called or named) and id(node) not in skipped:
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("name", MODULES)
def test_device_calls_follow_the_accelerator(name, monkeypatch):
    """Every one of them; what a call then answers, the replay buffer shows."""
    assert cuda_lines(importlib.import_module(f"openrlhf.{name}")) == []
    if name == "trainer.ppo_utils.replay_buffer":
        from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

        monkeypatch.setattr("torch.cuda.current_device", lambda: 7)  # so that asking CUDA is a wrong answer, no crash
        buffer = NaiveReplayBuffer(sample_batch_size=1)
        assert buffer.target_device == torch.device(get_accelerator().current_device_name())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is NCCL")
def test_full_weights_are_broadcast_without_nccl():
    """Two ranks, as threads: the trainer's and an engine worker's."""
    from openrlhf.utils.distributed_util import stateless_init_process_group

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    weights = [torch.full((3, 5), 7.0), torch.zeros(3, 5)]

    ended = queue.SimpleQueue()  # of each rank: None, or what it raised

    def take_part(rank: int) -> None:
        try:
            group = stateless_init_process_group("127.0.0.1", port, rank, 2, torch.device("cpu"))
            group.broadcast(weights[rank], src=0)
            ended.put(None)
        except BaseException as error:
            ended.put(error)

    for rank in (0, 1):
        threading.Thread(target=take_part, args=(rank,), daemon=True).start()
    for _ in (0, 1):  # the first that fails, while the other waits for it
        if error := ended.get(timeout=60):
            raise error
    assert weights[1].eq(7).all(), "the engine's rank has the weights of the trainer's"


def lora_model() -> torch.nn.Module:
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    return get_peft_model(layer, LoraConfig(r=2, target_modules=["0"]))


def test_lora_optimizer_has_no_empty_group():
    from openrlhf.utils.deepspeed.deepspeed_utils import get_optimizer_grouped_parameters

    groups = get_optimizer_grouped_parameters(lora_model(), weight_decay=0.0)
    assert [len(group["params"]) for group in groups] == [2]


def test_cpu_optimizer_needs_no_compiler(monkeypatch):
    from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy

    # Where compilation starts: half a minute that the answer does not need.
    stop = lambda _builder: pytest.fail("DeepSpeed's Adam is compiled")  # noqa: E731
    monkeypatch.setattr("deepspeed.ops.op_builder.CPUAdamBuilder.load", stop)
    strategy = types.SimpleNamespace(adam_offload=True)
    optimizer = DeepspeedStrategy.create_optimizer(strategy, lora_model(), lr=1e-3, weight_decay=0.0)
    assert type(optimizer) is torch.optim.AdamW


def test_cpu_process_group_needs_no_compiler(monkeypatch):
    import deepspeed
    from deepspeed.comm.torch import build_shm_op
    from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy

    # Where the group is made; `build_shm_op` is its first step.
    built = []
    monkeypatch.setitem(deepspeed.ops.__compatible_ops__, "deepspeed_shm_comm", True)
    monkeypatch.setattr("deepspeed.ops.op_builder.cpu.ShareMemCommBuilder.load", lambda _builder: "compiled")
    monkeypatch.setattr(deepspeed, "init_distributed", lambda **_: built.append(build_shm_op()))
    monkeypatch.setattr("openrlhf.utils.deepspeed.deepspeed.dist.get_world_size", lambda: sys.exit("group made"))
    strategy = types.SimpleNamespace(full_determinism=False, seed=3, args=types.SimpleNamespace(local_rank=-1))
    with pytest.raises(SystemExit, match="group made"):
        DeepspeedStrategy.setup_distributed(strategy)
    assert built == [None]


def test_offload_reaches_the_deepspeed_config():
    from openrlhf.utils.deepspeed import DeepspeedStrategy

    for offload, device in ((False, "none"), (True, "cpu")):
        strategy = DeepspeedStrategy(args=types.SimpleNamespace(param_dtype="bf16", zpg=1, offload=offload))
        assert strategy.get_ds_train_config(True)["zero_optimization"]["offload_param"]["device"] == device


def test_offloaded_parameters_are_pinned():
    from openrlhf.utils.deepspeed import DeepspeedStrategy

    strategy = DeepspeedStrategy(args=types.SimpleNamespace(param_dtype="bf16", zpg=1, offload=True))
    kept = strategy.get_ds_train_config(True)["zero_optimization"]["offload_param"]
    assert kept == {"device": "cpu", "pin_memory": True}


def test_offloaded_adam_trains_without_a_compiler(one_rank):
    """--adam_offload where DeepSpeed's own Adam is not to be had: torch's, on the float32 partitions in host memory."""
    import deepspeed
    from deepspeed.runtime.zero.utils import ZeRORuntimeException
    from openrlhf.utils.deepspeed import DeepspeedStrategy

    args = types.SimpleNamespace(param_dtype="bf16", zpg=1, offload=False, adam_offload=True, local_rank=-1)
    strategy = DeepspeedStrategy(zero_stage=3, micro_train_batch_size=1, train_batch_size=1, args=args)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False)).bfloat16()
    before, inputs = model[0].weight.detach().clone(), torch.ones(1, 8, dtype=torch.bfloat16)
    optimizer = strategy.create_optimizer(model, lr=0.25, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1)
    try:
        engine, *_ = strategy.prepare((model, optimizer, scheduler))
    except ZeRORuntimeException as refusal:
        pytest.fail(str(refusal))
    engine.backward(engine(inputs).float().sum())
    engine.step()
    with deepspeed.zero.GatheredParameters([engine.module[0].weight]):
        # Adam's first step is the learning rate, whatever the gradient's size. bf16 rounds a number below 1 by 2**-9.
        step = before.float() - engine.module[0].weight.float()
        assert ((step - 0.25).abs() <= 2**-9 + 1e-6).all()
