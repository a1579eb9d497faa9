"""The tiny gpt-oss: real `GptOssForCausalLM`, written to disk in the layout of the published MXFP4 checkpoints.

Sinks, one sliding and one full attention layer, a mixture of experts stored as MXFP4, YaRN, everything else bfloat16.
transformers (`Mxfp4Config(dequantize=True)`) and vLLM read the directory as they read gpt-oss-20b.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import GptOssConfig, GptOssForCausalLM, Mxfp4Config

from rft import mxfp4_codec
from rft.hooks import rotary
from rft.tiny.tokenizer import CALL, EOS, PAD, build_tokenizer

EXPERT_WEIGHTS = ("gate_up_proj", "down_proj")  # (E, in, out) in memory, MXFP4 on disk
QUANTIZATION = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}


def tiny_config(texts: tuple[str, ...] = ()) -> GptOssConfig:
    """About 0.6 M parameters; every sharded width divides by two, and expert shards stay whole MXFP4 blocks.

    `texts` are the task's own, see `rft.tiny.tokenizer`.
    """
    tokenizer = build_tokenizer(texts)
    vocab_size = -(-len(tokenizer) // 64) * 64
    return GptOssConfig(
        architectures=["GptOssForCausalLM"],
        vocab_size=vocab_size,
        num_hidden_layers=2,
        hidden_size=128,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        experts_per_token=2,
        # Shorter than a prompt with its answer (about 90 tokens), so the window really hides something.
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"],
        initial_context_length=4096,
        max_position_embeddings=131072,
        rope_theta=150000.0,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        swiglu_limit=7.0,
        router_aux_loss_coef=0.9,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.convert_tokens_to_ids(EOS),
        pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
        torch_dtype="bfloat16",
    )


def build_model(seed: int, std: float | None = None, config: GptOssConfig | None = None) -> GptOssForCausalLM:
    """A float32 model with weights drawn from `seed` alone; the global random state is left as it was.

    `config` is `tiny_config()` where it is None. Matrices and embeddings are normal with standard deviation `std`, or,
    with None, 1/sqrt(inputs) and 1: such a model's greedy choices are far from ties. Norms are 1, biases and sinks 0.
    """
    with torch.random.fork_rng(devices=[]):  # transformers draws initial weights of its own
        config = config or tiny_config()
        model = GptOssForCausalLM._from_config(config, attn_implementation="eager", torch_dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if name.endswith("norm.weight"):
                parameter.fill_(1)
            elif name.endswith(("bias", "sinks")):
                parameter.zero_()
            elif name == "model.embed_tokens.weight":
                parameter.normal_(0, std or 1, generator=generator)
            else:
                # nn.Linear keeps (out, in), the stacked experts (E, in, out)
                fan_in = parameter.shape[1]
                parameter.normal_(0, std or fan_in**-0.5, generator=generator)
    return model.eval()


def state_for_disk(model: GptOssForCausalLM) -> dict[str, torch.Tensor]:
    """The checkpoint's tensors by name: experts as `*_blocks` and `*_scales` (uint8), all others bfloat16."""
    state = {}
    for name, tensor in model.state_dict().items():
        if name.endswith(EXPERT_WEIGHTS):
            state[f"{name}_blocks"], state[f"{name}_scales"] = mxfp4_codec.encode(tensor)
        else:
            state[name] = tensor.to(torch.bfloat16).contiguous()
    return dict(sorted(state.items()))


def save_checkpoint(model: GptOssForCausalLM, directory: Path, texts: tuple[str, ...] = ()) -> None:
    """Write `model` with config, generation config and tokenizer into `directory`, which is made if missing.

    The bytes depend on the weights only, so equal models give equal files. `texts` as for `tiny_config`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(texts)
    config = model.config.to_dict() | {"quantization_config": QUANTIZATION}
    stop_ids = tokenizer.convert_tokens_to_ids([EOS, CALL])
    generation = {
        "bos_token_id": tokenizer.bos_token_id,
        "do_sample": True,
        "eos_token_id": stop_ids,
        "pad_token_id": tokenizer.pad_token_id,
    }
    save_file(state_for_disk(model), directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2, sort_keys=True) + "\n")
    tokenizer.save_pretrained(directory)


def load_dequantized(directory: Path, dtype: torch.dtype = torch.bfloat16) -> GptOssForCausalLM:
    """The stored checkpoint as transformers loads it for training: experts dequantised, eager attention, in `dtype`."""
    model = GptOssForCausalLM.from_pretrained(
        directory,
        quantization_config=Mxfp4Config(dequantize=True),
        attn_implementation="eager",
        torch_dtype=torch.bfloat16,
    )
    model.config._experts_implementation = "eager"  # transformers 5 has another, which takes no float64
    return rotary.cast(model, dtype).eval()
