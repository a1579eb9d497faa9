"""Rollouts from OpenRLHF's own generator and engines under Ray: seeds, order, canary, filtering, a core that dies."""

import os
import types

import pytest
import torch
from layouts import samples_generator

pytestmark = pytest.mark.stack
PROMPTS = [f"<|start|>user<|message|>{n} + {2 * n} =<|end|><|start|>assistant" for n in range(12)]
ARGS = {
    "enable_vllm_is_correction": False, "n_samples_per_prompt": 3, "rollout_seeds": "request", "seed": 5,
    "rollout_batch_size": len(PROMPTS), "dynamic_filtering": False, "vllm_enable_sleep": False,
    "reward_timeout": 60,
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A Ray cluster of this module's own, joined by this process."""
    import ray

    from benchmarks.ray_head import ray_head

    before = dict(os.environ)
    with ray_head(tmp_path_factory.mktemp("ray"), logical_gpus=3) as address:
        ray.init(address=address, logging_level="ERROR")
        yield
        ray.shutdown()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def engines(cluster, checkpoint, tmp_path_factory):
    """Two engines with seeds of their own and --full_determinism, over the untrained checkpoint."""
    import ray
    from openrlhf.trainer.ray import create_vllm_engines

    reward = tmp_path_factory.mktemp("reward") / "reward.py"
    reward.write_text("def reward_func(queries, prompts, labels):\n    return {'rewards': [float(len(queries[0]))]}\n")
    found = create_vllm_engines(
        2, 1, str(checkpoint), 0, True, True, True, 160, None, 0.9, False, "processed_logprobs",
        remote_rm_url=[str(reward)],
    )  # fmt: skip
    ray.get([engine.get_num_unfinished_requests.remote() for engine in found])
    return found


def generate(engines: list, checkpoint, step: int = 3, max_new_tokens: int = 20, prompts=PROMPTS, **changes) -> list:
    from transformers import AutoTokenizer

    strategy = types.SimpleNamespace(
        args=types.SimpleNamespace(**(ARGS | {"rollout_batch_size": len(prompts)} | changes))
    )
    loader = [("tiny", [prompt], ["1"]) for prompt in prompts]
    generator = samples_generator()(strategy, loader, None, AutoTokenizer.from_pretrained(checkpoint), engines)
    experiences, *_ = generator.generate_samples(global_step=step, prompt_max_len=128, max_new_tokens=max_new_tokens)
    return experiences


def test_the_tokenizer_is_sent_once(engines, checkpoint, monkeypatch):
    """Ray pickles it with the prompts otherwise, which takes seconds of a rollout with gpt-oss's vocabulary."""
    from transformers import PreTrainedTokenizerFast

    pickled = []

    def reduced(tokenizer, protocol):
        pickled.append(len(tokenizer))
        return object.__reduce_ex__(tokenizer, protocol)

    monkeypatch.setattr(PreTrainedTokenizerFast, "__reduce_ex__", reduced, raising=False)
    experiences = generate(engines, checkpoint, max_new_tokens=2)
    assert len(experiences) == len(PROMPTS) * ARGS["n_samples_per_prompt"]
    assert len(pickled) == 1


def tokens(experiences: list) -> list[list[int]]:
    return [experience.sequences[0].tolist() for experience in experiences]


def test_rollouts_do_not_depend_on_the_number_of_engines(engines, checkpoint):
    one = generate(engines[:1], checkpoint)
    two = generate(engines, checkpoint)
    assert tokens(one) == tokens(two)
    assert [e.prompts[0] for e in one] == [prompt for prompt in PROMPTS for _ in range(3)]
    assert all(torch.equal(a.rollout_log_probs, b.rollout_log_probs) for a, b in zip(one, two, strict=True))
    groups = [tokens(one)[start : start + 3] for start in range(0, len(one), 3)]
    assert sum(len({tuple(sample) for sample in group}) == 3 for group in groups) > len(groups) / 2
    assert tokens(generate(engines[:1], checkpoint, step=4)) != tokens(one)
    assert tokens(generate(engines[:1], checkpoint, seed=6)) != tokens(one)


def test_canary_moves_if_and_only_if_the_weights_do(engines, checkpoint):
    import ray
    from tiny_adapter import LAYERS, adapter

    from rft.hooks.lora_manifest import build_manifest

    def sync(manifest, buffer) -> None:
        ray.get(engines[0].apply_lora.remote(manifest, ray.put(buffer.view(torch.uint8).numpy())))

    def shift() -> float:
        (experience,) = generate(engines[:1], checkpoint, prompts=PROMPTS[:1], n_samples_per_prompt=1)
        assert experience.info["adapter_version"].item() == version
        return experience.info["sync_canary_shift"].item()

    version = 0
    assert shift() == 0
    zero = build_manifest(LAYERS, torch.bfloat16, version=21)
    sync(zero, torch.zeros(zero["numel"], dtype=torch.bfloat16))
    version = 21
    assert shift() == 0
    sync(*adapter(seed=22))
    version = 22
    moved = shift()
    assert moved > 0.01
    sync({**zero, "version": 23}, torch.zeros(zero["numel"], dtype=torch.bfloat16))
    version = 23
    assert shift() == 0


def test_weights_that_changed_without_a_sync_are_found_out(engines, checkpoint):
    """A zero adapter changes nothing; what the engine computes with has changed nevertheless."""
    import ray
    from safetensors.torch import load_file
    from tiny_adapter import LAYERS

    from rft.hooks.lora_manifest import build_manifest

    generate(engines[:1], checkpoint, prompts=PROMPTS[:1])  # the base is measured
    norm = load_file(checkpoint / "model.safetensors")["model.norm.weight"]  # no adapter's: a sync does not put it back

    def scale(factor: float) -> None:
        payload = ray.put((factor * norm).to(norm.dtype).view(torch.uint8).numpy())
        ray.get(engines[0].update_weight_from_ref.remote("model.norm.weight", norm.dtype, tuple(norm.shape), payload))

    scale(1.5)
    zero = build_manifest(LAYERS, torch.bfloat16, version=41)
    values = torch.zeros(zero["numel"], dtype=torch.bfloat16).view(torch.uint8).numpy()
    ray.get(engines[0].apply_lora.remote(zero, ray.put(values)))
    with pytest.raises(RuntimeError, match=r"version 41 changed no weight.* 1 tensors .* such as model.norm.weight"):
        generate(engines[:1], checkpoint, prompts=PROMPTS[:1])
    scale(1.0)
    ray.get(engines[0].apply_lora.remote({**zero, "version": 42}, ray.put(values)))
    generate(engines[:1], checkpoint, prompts=PROMPTS[:1])


def test_engine_that_does_not_serve_what_it_received_is_found_out(engines, checkpoint):
    """A receipt that claims an update which the engine does not compute with: the next rollout must not happen."""
    import ray
    from tiny_adapter import adapter

    manifest, buffer = adapter(seed=31)
    generate(engines[1:2], checkpoint, prompts=PROMPTS[:1])  # measures the base
    receipts = ray.get(engines[1].apply_lora.remote(manifest, ray.put(buffer.view(torch.uint8).numpy())))
    assert receipts[0]["kept_share"] > 0.5
    # What a sync into a private copy of the weights looks like: they go back, the receipt stays.
    for number in range(8):
        ray.get(engines[1].update_weight_from_ref.remote(*base_of_one_layer(checkpoint, number)))
    with pytest.raises(RuntimeError, match="the new weights are not served"):
        generate(engines[1:2], checkpoint, prompts=PROMPTS[:1])


def test_groups_that_passed_the_filter_are_rolled_out_when_the_data_ends(engines, checkpoint):
    """The reward is the length: short prompts are rejected, and there is no other prompt for the last of them."""
    from openrlhf.utils.deepspeed import DeepspeedStrategy
    from transformers import AutoTokenizer

    long = "9 + " * 25
    prompts = [f"{long}{n}" if n in (1, 4) else f"{n}" for n in range(6)]
    changes = {"rollout_batch_size": 4, "dynamic_filtering": True, "dynamic_filtering_reward_range": (100, 1e9)}
    args = types.SimpleNamespace(param_dtype="bf16", **(ARGS | changes))
    rows = [("tiny", prompt, "1") for prompt in prompts]
    # A sampler of its own: in this process another test's engine may have made a process group.
    loader = DeepspeedStrategy(seed=0, args=args).setup_dataloader(
        rows, 1, False, False, lambda items: tuple(map(list, zip(*items, strict=True))),
        sampler=torch.utils.data.SequentialSampler(rows),
    )  # fmt: skip
    strategy, tokenizer = types.SimpleNamespace(args=args), AutoTokenizer.from_pretrained(checkpoint)
    generator = samples_generator()(strategy, loader, None, tokenizer, engines[:1])
    lengths = {"prompt_max_len": 128, "max_new_tokens": 8}
    experiences, rate, consumed, exhausted = generator.generate_samples(global_step=0, **lengths)
    kept = [experience.prompts[0] for experience in experiences]
    assert len(kept) == 12 and {prompts[1], prompts[4]} <= set(kept)
    assert sum(getattr(experience, "filtered_out", False) for experience in experiences) == 6
    assert (consumed, exhausted, rate) == (6, False, pytest.approx(100 * 2 / 6))
    assert generator.generate_samples(global_step=1, **lengths) == ([], None, 0, True)


def base_of_one_layer(checkpoint, number: int) -> tuple:
    """Arguments of `update_weight_from_ref` that put one adapted weight of the checkpoint back."""
    import ray
    from safetensors.torch import load_file
    from tiny_adapter import NAMES

    weight = load_file(checkpoint / "model.safetensors")[NAMES[number]]
    return NAMES[number], weight.dtype, tuple(weight.shape), ray.put(weight.flatten().view(torch.uint8).numpy())


@pytest.fixture(scope="module")
def colocated(cluster, checkpoint):
    """An engine in a placement group, and the state of its actor when `create_vllm_engines` has returned."""
    import ray
    from openrlhf.trainer.ray import create_vllm_engines
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([{"GPU": 1, "CPU": 1}])
    ray.get(group.ready())
    (engine,) = create_vllm_engines(1, 1, str(checkpoint), 0, False, True, True, 160, group, 0.9)
    yield engine, ray._private.state.actors(engine._actor_id.hex()).get("State")
    ray.kill(engine)
    remove_placement_group(group)


def test_colocated_engines_are_up_before_anything_else_loads(colocated):
    assert colocated[1] == "ALIVE", "its `__init__` has ended"


def test_engine_reports_the_death_of_its_core(request):
    """The actor lives on, and would be asked nothing before the next rollout. Last in the file: no engine is left."""
    import psutil
    import ray
    from openrlhf.trainer.ray.vllm_engine import LLMRayActor

    assert hasattr(LLMRayActor.__ray_metadata__.modified_class, "watch")
    engine, _ = request.getfixturevalue("colocated")
    actor = psutil.Process(ray.get(engine.__ray_call__.remote(lambda _: os.getpid())))
    (core,) = [child for child in actor.children() if child.cmdline()[0].startswith("VLLM::EngineCore")]
    core.suspend()
    ray.get(engine.__ray_call__.remote(lambda _: os.environ.update(STALL_LIMIT="2")))
    (still,) = ray.get(engine.watch.remote(), timeout=300)
    assert (still.who, still.pid, still.what) == ("EngineCore", core.pid, "stands still")
    assert "answered nothing for 2 s" in still.how
    core.resume()
    ray.get(engine.__ray_call__.remote(lambda _: os.environ.update(STALL_LIMIT="0")))
    alarm = engine.watch.remote()
    assert ray.wait([alarm], timeout=5)[1] == [alarm], "it answers again"
    core.kill()
    (death,) = ray.get(alarm, timeout=300)
    assert (death.who, death.pid, death.log_pid) == ("EngineCore", core.pid, actor.pid)
    assert "SIGKILL" in death.how
