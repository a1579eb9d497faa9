"""Preflight: bytes of the resident actor and of an engine beside it, against hand arithmetic and measured peaks."""

import math
from argparse import Namespace

import pytest
from preflight_options import CONFIG_20B, CONFIG_120B, EIGHT_GPUS, options, refused, verdicts

from rft.runs.preflight import actor, engine, memory, resident
from rft.runs.preflight.lines import GO, NO_GO

TRAINED_20B = 24 * 32 * (6976 + 3392 + 3392 + 6976)  # r x (in + out) of q, k, v, o
H100, H200 = 81_559 * 2**20, 143_771 * 2**20  # memory.total of nvidia-smi


def close(found: float, wanted: float) -> bool:
    return math.isclose(found, wanted, rel_tol=1e-12)


def test_weights_are_those_of_the_checkpoint():
    """20b on disk: 13.76 GB, of which 24 x 32 x (5,760 + 2,880) x 2,880 weights take 17 bytes for 32 of them."""
    assert close(resident.packed_bytes(CONFIG_20B), 24 * 32 * (5760 + 2880) * 2880 * 17 / 32)
    assert close(resident.packed_bytes(CONFIG_120B), 36 * 128 * (5760 + 2880) * 2880 * 17 / 32)
    layer = 5120 * 2880 + 2880 * 4096  # q, k and v together; o
    layer += 5120 + 2880 + 64 + 2 * 2880 + 32 * 2880 + 32 + 32 * (5760 + 2880)  # biases, sinks, norms, router
    assert resident.other_bytes(CONFIG_20B) == 2 * (2 * 201088 * 2880 + 2880 + 24 * layer)
    assert 13.7e9 < resident.packed_bytes(CONFIG_20B) + resident.other_bytes(CONFIG_20B) < 13.8e9
    assert resident.scratch_bytes(CONFIG_20B) == 2 * 32 * 8640 * 2880


def test_activations_of_a_token():
    assert resident.first_product_bytes(CONFIG_20B) == 46_080  # 4 experts x 5,760 x 2 bytes
    residuals, normed, attention = 2 * 5760, 2 * 5760, 2 * (4096 + 512 + 512 + 4096)
    assert resident.kept_bytes(CONFIG_20B) == residuals + normed + attention + 4 * 64 + 4 * 32 + 4 * 16
    assert resident.kept_bytes(CONFIG_120B) == resident.kept_bytes(CONFIG_20B) + 4 * 96  # more experts to route to
    assert resident.backward_bytes(CONFIG_20B) == 4 * 2 * (2880 + 2880 + 5760)
    assert resident.log_prob_bytes(CONFIG_20B, 4096) == 1024 * 201088 * 6 + 8 * 2880 * 4096
    assert resident.log_prob_bytes(CONFIG_20B, 10) == 10 * 201088 * 6 + 8 * 2880 * 10


# torch's peak allocation on one H200, random weights, LoRA r=32, no optimizer: GiB.
MEASURED = [
    (CONFIG_20B, 4_096, False, True, 25.3),
    (CONFIG_20B, 8_192, False, True, 35.0),
    (CONFIG_20B, 4_096, True, False, 16.2),
    (CONFIG_20B, 16_384, True, False, 19.0),
    (CONFIG_120B, 16_384, True, False, 74.0),
]


@pytest.mark.parametrize("config, tokens, checkpointing, h_kept, measured", MEASURED)
def test_the_arithmetic_is_within_a_tenth_of_measured_peaks(config, tokens, checkpointing, h_kept, measured):
    sizes = resident.Sizes(tokens, 1, checkpointing, zero_stage=0)
    adapter = TRAINED_20B * (resident.ADAPTER_BYTES + 2) / 2**30  # with its gradient
    states = TRAINED_20B * (resident.ADAPTER_BYTES + resident.OPTIMIZER_BYTES) / 2**30
    peak = resident.peak_bytes(config, sizes, TRAINED_20B, h_kept) - resident.CONTEXT
    assert math.isclose(peak / 2**30 - states + adapter, measured, rel_tol=0.1)


def test_what_each_option_adds_or_saves():
    def peak(**more) -> float:
        return resident.peak_bytes(CONFIG_120B, resident.Sizes(16_384, 32_768)._replace(**more), TRAINED_20B)

    # Shares of the packed bytes, and two layers of them gathered.
    packed = 36 * 128 * 8640 * 2880 * 17 / 32
    assert close(peak() - peak(ranks=4, sharded=True), packed * 3 / 4 - 2 * packed / 36 + TRAINED_20B * 14 * 3 / 4)
    assert close(peak() - peak(ranks=4), TRAINED_20B * 14 * 3 / 4)  # ZeRO-2: optimizer and gradients
    assert close(peak(zero_stage=0, ranks=4), peak() - resident.REDUCE_BUCKET)
    kept, h = resident.kept_bytes(CONFIG_120B), resident.first_product_bytes(CONFIG_120B)
    whole = 16_384 * 36 * kept + resident.log_prob_bytes(CONFIG_120B, 16_384)
    recomputed = 16_384 * (36 * 5760 + kept + h + resident.backward_bytes(CONFIG_120B))
    assert close(peak() - peak(checkpointing=True), whole - recomputed)
    sizes = resident.Sizes(16_384, 32_768)
    assert close(resident.peak_bytes(CONFIG_120B, sizes, TRAINED_20B, h_kept=True) - peak(), 16_384 * 36 * h)
    assert peak(scored=2**20) - peak() > 0  # a large forward pass alone can be the peak


RESIDENT = {"actor": "resident", "micro_train_tokens": 16_384, "micro_rollout_tokens": 32_768}
COLOCATED = (
    f"{EIGHT_GPUS} --colocate_all_models --actor_num_gpus_per_node 1 --vllm_num_engines 1 "
    "--vllm_tensor_parallel_size 1 --zero_stage 2"
)


@pytest.fixture
def colocated(tmp_path):
    """A function from options of one GPU with actor and engine of gpt-oss-20b to what preflight reads."""
    with (tmp_path / "model.safetensors").open("wb") as stream:
        stream.truncate(13_761_300_000)
    return lambda more="", **values: with_values(f"{COLOCATED} --pretrain {tmp_path} {more}", **values)


def with_values(text: str, **values) -> Namespace:
    """Options, and the resident actor's, which need not be in the parser."""
    return Namespace(**vars(options(text)) | RESIDENT | values)


def gpus(total: float, free: float | None = None) -> list[dict]:
    return [{"free": total if free is None else free, "total": total, "name": "GPU"}]


def test_tokens_of_a_micro_batch():
    args = with_values(EIGHT_GPUS, micro_train_tokens=0, micro_rollout_tokens=0, micro_rollout_batch_size=3)
    assert actor.sizes_of(args)[:2] == (5120, 3 * 5120)
    assert actor.sizes_of(with_values(EIGHT_GPUS))[:2] == (16_384, 32_768)
    assert not actor.sizes_of(args).sharded and actor.sizes_of(with_values(EIGHT_GPUS, shard_experts=True)).sharded


def test_an_engine_gets_what_the_actor_leaves_and_no_more_than_it_can_use(colocated):
    args = colocated()
    need, cache = actor.actor_bytes(args, CONFIG_20B), engine.cache_bytes(args, CONFIG_20B, 128)
    assert close(cache, 128 * (12 * 5120 + 12 * 5120) * 2048)  # no window in this config.json
    config = CONFIG_20B | {"sliding_window": 128, "num_experts_per_tok": 4}
    cache = engine.cache_bytes(args, config, 128)
    assert close(cache, 128 * 12 * (5120 + 128) * 2048)
    fixed = 13_761_300_000 + engine.ENGINE_FIXED
    for total in (H100, H200):  # all 128 samples at once
        assert engine.utilisation(args, config, gpus(total)) == math.floor(100 * (fixed + cache) / total) / 100
        assert need + fixed + cache + engine.ENGINE_OUTSIDE < 0.9 * total
    small = 68e9
    share = engine.utilisation(args, config, gpus(small))
    assert share == math.floor(100 * (0.9 * small - need - engine.ENGINE_OUTSIDE) / small) / 100
    args.vllm_gpu_memory_utilization = share
    assert verdicts(memory.check_gpu_memory(args, config, gpus(small))) == {GO}
    used = engine.utilisation(args, config, gpus(H100, H100 - 15e9))  # by another process
    assert used < engine.utilisation(args, config, gpus(H100))
    with pytest.raises(
        ValueError, match=r"found:  48\.0 GB free, .*\n  wanted: 16\.9 GB for the engine\n  repair: fewer"
    ):
        engine.utilisation(args, config, gpus(48e9))


def test_a_sleeping_engine_keeps_its_weights(colocated):
    """vLLM 0.15.1 frees the KV cache alone."""
    asleep, awake = colocated("--vllm_enable_sleep"), colocated()
    budget = 0.4 * H100
    cache = budget - 13_761_300_000 - engine.ENGINE_FIXED
    saved = memory.shared_bytes(awake, CONFIG_20B, budget) - memory.shared_bytes(asleep, CONFIG_20B, budget)
    assert close(saved, cache)
    large = 0.8 * H100  # the peak is a rollout, beside an actor that rests
    resting = actor.actor_resting_bytes(asleep, CONFIG_20B)
    assert close(memory.shared_bytes(asleep, CONFIG_20B, large), resting + large + engine.ENGINE_OUTSIDE)
    assert engine.utilisation(asleep, CONFIG_20B, gpus(66e9)) > engine.utilisation(awake, CONFIG_20B, gpus(66e9))


def test_the_page_of_a_shared_gpu(colocated):
    """One H100: the default of 0.95 is refused, with the value that fits."""
    refused(
        memory.check_gpu_memory(colocated(), CONFIG_20B, gpus(H100)), "actor + engine", "--vllm_gpu_memory_utilization"
    )
    fitting = colocated("--vllm_gpu_memory_utilization 0.38")
    line = memory.check_gpu_memory(fitting, CONFIG_20B, gpus(H100))[0]
    assert line.verdict == GO and "18.1 GB more to keep the experts' first products: recomputed" in line.measured
    line = memory.check_gpu_memory(fitting, CONFIG_20B, gpus(H200))[0]
    assert line.verdict == GO and line.measured.endswith("first products: kept")
    long = colocated(micro_train_tokens=131_072)
    refused(memory.check_gpu_memory(long, CONFIG_20B, gpus(H100)), "actor + engine", "fewer tokens")


def test_more_tokens_are_named_where_they_fit(tmp_path):
    text = f"{EIGHT_GPUS} --zero_stage 2 --pretrain {tmp_path}"
    alone = with_values(text, micro_train_tokens=4096)
    assert "--micro_train_tokens 16384 would fit too" in actor.larger_micro_batch(alone, CONFIG_20B, 60e9)
    assert "another loss" in actor.larger_micro_batch(alone, CONFIG_20B, 60e9)
    alone.loss_normalization = "batch"
    assert actor.larger_micro_batch(alone, CONFIG_20B, 60e9).endswith("is faster")
    # 4 samples a rank hold 20,480 tokens at most, and beyond 32,768 there is nothing to gain.
    assert actor.larger_micro_batch(with_values(text), CONFIG_20B, H200) == ""
    wide = with_values(f"{text} --train_batch_size 128")
    assert "--micro_train_tokens 32768 would" in actor.larger_micro_batch(wide, CONFIG_20B, H200)


def test_120b_on_cards_of_80_gb_wants_its_experts_sharded():
    four = f"{EIGHT_GPUS} --zero_stage 2 --lora_rank 64"
    whole, sharded = (with_values(four, shard_experts=on) for on in (False, True))
    assert verdicts(memory.check_gpu_memory(whole, CONFIG_120B, gpus(H100))[:1]) == {NO_GO}
    assert verdicts(memory.check_gpu_memory(sharded, CONFIG_120B, gpus(H100))[:1]) == {GO}
    one = with_values(f"{four} --actor_num_gpus_per_node 1")
    assert verdicts(memory.check_gpu_memory(one, CONFIG_120B, gpus(H200))[:1]) == {GO}


def test_host_memory_holds_a_tensor_a_rank(monkeypatch):
    """1.06 GB of packed bytes of a layer at 120b, 1.16 GB of an embedding: no bf16 model."""
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    one = with_values(f"{EIGHT_GPUS} --actor_num_gpus_per_node 1")
    assert memory.host_bytes(one, CONFIG_120B) == 2 * 201088 * 2880
    assert resident.largest_tensor_bytes(CONFIG_120B | {"vocab_size": 1}) == 128 * 5760 * 2880 // 2
    assert memory.host_bytes(with_values(EIGHT_GPUS), CONFIG_120B) == 4 * 2 * 201088 * 2880
