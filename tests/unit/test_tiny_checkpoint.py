"""The tiny checkpoint: deterministic files, the published layout, and readable by transformers bit for bit."""

import hashlib
import json

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, GenerationConfig

from rft import mxfp4_codec
from rft.checkpoint_check import require_gpt_oss
from rft.tiny.checkpoint import EXPERT_WEIGHTS, build_model, load_dequantized, save_checkpoint, tiny_config


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    model, path = build_model(seed=0), tmp_path_factory.mktemp("tiny") / "model"
    save_checkpoint(model, path)
    return model, path


def hashes(path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.iterdir())}


def test_same_seed_same_files(saved, tmp_path):
    torch.manual_seed(99)  # the global state must not matter
    save_checkpoint(build_model(seed=0), tmp_path)
    assert hashes(tmp_path) == hashes(saved[1])
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} < hashes(tmp_path).keys()


def test_another_seed_changes_the_weights_only(saved, tmp_path):
    save_checkpoint(build_model(seed=1), tmp_path)
    old, new = hashes(saved[1]), hashes(tmp_path)
    assert {name for name in old if old[name] != new[name]} == {"model.safetensors"}


def test_building_leaves_the_global_random_state():
    before = torch.get_rng_state()
    build_model(seed=3)
    assert torch.get_rng_state().equal(before)


def test_transformers_reads_what_was_written(saved):
    model, path = saved
    expected, loaded = model.state_dict(), load_dequantized(path).state_dict()
    assert expected.keys() == loaded.keys()
    for name, tensor in loaded.items():
        wanted = expected[name]
        if name.endswith(EXPERT_WEIGHTS):
            wanted = mxfp4_codec.decode(*mxfp4_codec.encode(wanted))
        assert tensor.equal(wanted.bfloat16()), name


def test_layout_of_the_published_checkpoints(saved):
    config = tiny_config()
    experts, hidden, inner = config.num_local_experts, config.hidden_size, config.intermediate_size
    with safe_open(saved[1] / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
    layer = {
        name.removeprefix("model.layers.1.mlp.experts."): (tuple(t.shape), t.dtype)
        for name, t in tensors.items()
        if name.startswith("model.layers.1.mlp.experts.")
    }
    assert layer == {
        "gate_up_proj_blocks": ((experts, 2 * inner, hidden // 32, 16), torch.uint8),
        "gate_up_proj_scales": ((experts, 2 * inner, hidden // 32), torch.uint8),
        "gate_up_proj_bias": ((experts, 2 * inner), torch.bfloat16),
        "down_proj_blocks": ((experts, hidden, inner // 32, 16), torch.uint8),
        "down_proj_scales": ((experts, hidden, inner // 32), torch.uint8),
        "down_proj_bias": ((experts, hidden), torch.bfloat16),
    }
    others = {t.dtype for name, t in tensors.items() if not name.endswith(("_blocks", "_scales"))}
    assert others == {torch.bfloat16}


def test_architecture_and_stop_tokens(saved):
    config = AutoConfig.from_pretrained(saved[1])
    assert config.model_type == "gpt_oss" and config.architectures == ["GptOssForCausalLM"]
    assert config.quantization_config["quant_method"] == "mxfp4"
    assert config.layer_types == ["sliding_attention", "full_attention"]
    assert config.rope_scaling["rope_type"] == "yarn"
    assert config.vocab_size % 64 == 0
    # tensor parallelism over two: whole heads, and whole MXFP4 blocks of the experts' inner width
    assert config.num_attention_heads % 2 == config.num_key_value_heads % 2 == config.intermediate_size % 64 == 0
    assert 4e5 < sum(p.numel() for p in saved[0].parameters()) < 1e6
    tokens = {token["id"]: token for token in json.loads((saved[1] / "tokenizer.json").read_text())["added_tokens"]}
    stops = GenerationConfig.from_pretrained(saved[1]).eos_token_id
    assert [tokens[i]["content"] for i in stops] == ["<|return|>", "<|call|>"]
    assert config.eos_token_id == stops[0]


def test_small_initial_weights():
    model = build_model(seed=0, std=0.05)
    for name in ("model.embed_tokens.weight", "model.layers.0.mlp.experts.down_proj", "lm_head.weight"):
        assert model.state_dict()[name].std().item() == pytest.approx(0.05, rel=0.05)


def test_require_gpt_oss(saved, tmp_path):
    require_gpt_oss(saved[1])
    with pytest.raises(ValueError, match="no such directory; wanted a gpt-oss checkpoint"):
        require_gpt_oss(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"no config\.json; wanted"):
        require_gpt_oss(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        require_gpt_oss(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="found model_type 'llama'; wanted 'gpt_oss'"):
        require_gpt_oss(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss"}')
    with pytest.raises(ValueError, match=r"found no tokenizer\.json, \*\.safetensors"):
        require_gpt_oss(tmp_path)
