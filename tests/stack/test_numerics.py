"""The trainer holds and computes what the engine does: every tensor, and log-probabilities of 4,096 tokens.

docs/numerics.md lists the differences that are meant; the tables of this file are that list.
"""

import math
import sys

import cloudpickle
import pytest
import torch
from ranks import run_ranks
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig

from rft.mxfp4_codec import decode
from rft.serving.engine import open_engine
from rft.tiny.checkpoint import build_model, load_dequantized, save_checkpoint, tiny_config

pytestmark = pytest.mark.stack
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
TOKENS, LAYERS = 4096, 2
MODELS = ("2.trained", "2.resident", "2.evaluated", "3.trained", "3.resident", "3.evaluated")
# What one side holds and the other computes another way, by the end of its name; docs/numerics.md has the reasons.
ENGINE_ONLY = {
    **dict.fromkeys(("attn.attn._q_scale", "attn.attn._k_scale", "attn.attn._v_scale", "attn.attn._prob_scale"), 1.0),
}
ROTARY = {"engine": "rotary_emb.cos_sin_cache", "trainer": "model.rotary_emb.inv_freq"}


@pytest.fixture(scope="module")
def long_checkpoint(tmp_path_factory):
    """gpt-oss's own YaRN, head dimension and window; no two tensors alike; attention that looks far.

    With queries and keys of 1.5 times the usual size a few of the 4,096 tokens get most of the attention, as in a
    trained model: with less it is an average over all of them, whatever their phase.
    """
    changes = {"head_dim": 64, "sliding_window": 128}
    model = build_model(seed=3, config=GptOssConfig(**(tiny_config().to_dict() | changes)))
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if name.endswith(("norm.weight", "bias", "sinks")):
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
            elif name.endswith(("q_proj.weight", "k_proj.weight")):
                parameter.mul_(1.5)
    path = tmp_path_factory.mktemp("long-gpt-oss")
    save_checkpoint(model, path)
    return path


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    """(1, 4,096) random tokens, special ones left out."""
    return torch.randint(5, 60, (1, TOKENS), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def trainer(long_checkpoint, ids, tmp_path_factory) -> dict[str, torch.Tensor]:
    """What `prepared_actor.py` writes."""
    out = tmp_path_factory.mktemp("prepared") / "prepared.safetensors"
    save_file({"ids": ids}, f"{out}.input")
    run_ranks("prepared_actor.py", 1, long_checkpoint, out)
    return load_file(out)


@pytest.fixture(scope="module")
def engine(long_checkpoint, ids) -> dict[str, torch.Tensor]:
    """`held.NAME`: every parameter and buffer of the engine's worker; `logprobs` (4,095,) of `ids` as a prompt."""
    from vllm import SamplingParams

    def held(worker):
        model = worker.model_runner.get_model()
        named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        return {f"held.{name}": tensor.detach().clone() for name, tensor in named}

    llm = open_engine(str(long_checkpoint), max_model_len=TOKENS + 8, max_num_batched_tokens=2048, max_num_seqs=2)
    try:
        sampling = SamplingParams(max_tokens=1, prompt_logprobs=0)
        (done,) = llm.generate([{"prompt_token_ids": ids[0].tolist()}], sampling, use_tqdm=False)
        logprobs = [
            row[token].logprob for row, token in zip(done.prompt_logprobs[1:], ids[0, 1:].tolist(), strict=True)
        ]
        (found,) = llm.collective_rpc(held)
    finally:
        llm.llm_engine.engine_core.shutdown()
    return found | {"logprobs": torch.tensor(logprobs)}


def engine_names(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The trainer's tensors under the engine's names and in its layouts; what it alone holds under its own name."""
    found = dict(held)
    for layer in range(LAYERS):
        prefix, attention, experts = f"model.layers.{layer}.", "self_attn.", "mlp.experts."
        for kind in ("weight", "bias"):
            parts = [found.pop(f"{prefix}{attention}{part}_proj.{kind}") for part in "qkv"]
            found[f"{prefix}attn.qkv_proj.{kind}"] = torch.cat(parts)
            found[f"{prefix}attn.o_proj.{kind}"] = found.pop(f"{prefix}{attention}o_proj.{kind}")
        found[f"{prefix}attn.sinks"] = found.pop(f"{prefix}{attention}sinks")
        for theirs, ours in (("w13", "gate_up_proj"), ("w2", "down_proj")):
            packed = [found.pop(f"{prefix}{experts}{ours}_{part}", None) for part in ("blocks", "scales")]
            weight = found.pop(f"{prefix}{experts}{ours}") if packed[0] is None else decode(*packed)
            found[f"{prefix}{experts}{theirs}_weight"] = weight.transpose(1, 2)
            found[f"{prefix}{experts}{theirs}_bias"] = found.pop(f"{prefix}{experts}{ours}_bias")
    found["model.embedding.weight"] = found.pop("model.embed_tokens.weight")
    return found


@pytest.mark.parametrize("model", MODELS)
def test_engine_and_trainer_hold_the_same_tensors(trainer, engine, model):
    """Names, dtypes and bits, but for what the tables above name."""
    prefix = f"{model}.held."
    ours = engine_names({name.removeprefix(prefix): t for name, t in trainer.items() if name.startswith(prefix)})
    theirs = {name.removeprefix("held."): t for name, t in engine.items() if name.startswith("held.")}
    assert ours.pop(ROTARY["trainer"]).dtype == torch.float32
    for name in [name for name in theirs if name.endswith(ROTARY["engine"])]:
        del theirs[name]
    for name in [name for name in theirs if name.endswith(tuple(ENGINE_ONLY))]:
        assert theirs.pop(name).item() == next(v for end, v in ENGINE_ONLY.items() if name.endswith(end)), name
    assert ours.keys() == theirs.keys()
    assert {name: (t.dtype, tuple(t.shape)) for name, t in ours.items()} == {
        name: (t.dtype, tuple(t.shape)) for name, t in theirs.items()
    }
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert len({t.double().sum().item() for t in ours.values()}) == len(ours)  # else a swap would go unseen


def test_engine_and_trainer_turn_by_the_same_angles(trainer, engine, long_checkpoint):
    """Cosine and sine at 4,096 positions: float32 phases, rounded to bf16 once, against float64."""
    config = tiny_config()
    scaling, dimensions = config.rope_scaling, 64
    theta = getattr(config, "rope_theta", None) or scaling["rope_theta"]  # transformers 5 keeps it with the scaling
    # Peng et al., "YaRN", 2023, sections 3.2 and 3.4, without truncation of the ramp, as gpt-oss's config asks.
    exponents = torch.arange(0, dimensions, 2, dtype=torch.float64) / dimensions
    plain = theta**-exponents
    low, high = (
        dimensions * math.log(scaling["original_max_position_embeddings"] / (turns * 2 * math.pi)) / 2
        / math.log(theta) for turns in (scaling["beta_fast"], scaling["beta_slow"])
    )  # fmt: skip
    ramp = ((torch.arange(dimensions // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    phases = torch.arange(TOKENS, dtype=torch.float64)[:, None] * (
        plain * (1 - ramp) + plain / scaling["factor"] * ramp
    )
    size = 0.1 * math.log(scaling["factor"]) + 1
    wanted = torch.cat([phases.cos(), phases.sin()], dim=-1) * size
    # Half a bf16 step below 2, and a few float32 roundings of frequency and phase at 4,096 rad.
    bound = 2**-8 + 8 * 2**-24 * TOKENS * size
    caches = [tensor[:TOKENS] for name, tensor in engine.items() if name.endswith(ROTARY["engine"])]
    assert len(caches) == LAYERS
    for found in (*caches, torch.cat([trainer["cos"], trainer["sin"]], dim=-1)):
        assert found.to(torch.bfloat16).dtype == torch.bfloat16
        assert (found.to(torch.bfloat16).double() - wanted).abs().max() < bound


def test_engine_and_trainer_agree_at_4096_tokens(trainer, engine, long_checkpoint, ids):
    """Both are as near to float32 as bf16 allows: within twice the distance of a plain bf16 model, at any position.

    With frequencies that were cast to bf16 the trainer is several times as far.
    """

    @torch.no_grad()
    def plain(dtype: torch.dtype) -> torch.Tensor:
        model = load_dequantized(long_checkpoint, dtype)
        assert model.model.rotary_emb.inv_freq.dtype == torch.float32
        logits = model(ids).logits[0, :-1].float()
        return logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]

    exact = plain(torch.float32)
    found = {name: trainer[f"{name}.logprobs"] for name in MODELS} | {"engine": engine["logprobs"]}
    found |= {"noise": plain(torch.bfloat16), "cast": trainer["bf16_frequencies.logprobs"]}
    for begin, end in ((0, TOKENS), (TOKENS // 2, TOKENS)):
        error = {name: (values - exact)[begin:end].abs().mean().item() for name, values in found.items()}
        print(f"mean distance from float32, positions {begin} to {end}, nats:", error)
        for name in (*MODELS, "engine"):
            assert error[name] < 2 * error["noise"], name
        assert error["cast"] > 5 * error["noise"]
