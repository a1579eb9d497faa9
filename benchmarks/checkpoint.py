"""Random MXFP4 checkpoints in the exact shapes of gpt-oss, with a tokenizer that names token ids, and prompts.

`--harmony` gives them gpt-oss's own vocabulary instead, the tiny shape too.

    .venv/bin/python -m benchmarks.checkpoint --shape 20b --out DIR      13.8 GB, about 15 s where there is a GPU

Weights are drawn so that signals keep their size through any number of layers (matrices 1/sqrt(inputs), embeddings
1) and logits have the spread of a trained model's; nothing else about them is meant to be like a trained model.
"""

import argparse
import json
import math
import random
import shutil
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchmarks.report import log
from rft.tiny.checkpoint import QUANTIZATION

# Published config.json of openai/gpt-oss-20b and -120b; tiny has the dimensions of rft.tiny.
LARGE = {
    "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "num_experts_per_tok": 4, "vocab_size": 201088, "sliding_window": 128, "eos_token_id": 200002,
    "pad_token_id": 199999,
}  # fmt: skip
TINY = {
    "hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "num_experts_per_tok": 2, "vocab_size": 1024, "sliding_window": 64, "eos_token_id": 1022, "pad_token_id": 1023,
}  # fmt: skip
SHAPES = {
    "tiny": {**TINY, "num_hidden_layers": 2, "num_local_experts": 4},
    "20b": {**LARGE, "num_hidden_layers": 24, "num_local_experts": 32},
    "120b": {**LARGE, "num_hidden_layers": 36, "num_local_experts": 128},
}
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
LOGIT_STD = 4.0  # nats; a policy over 201,088 tokens then has about 4 nats of entropy, not the 12 of a uniform one
E2M1_RMS = 2.93  # of MXFP4 elements whose four bits are random
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% if not loop.last %} {% endif %}{% endfor %}"


def shape_config(shape: str, layers: int | None = None, experts: int | None = None) -> dict:
    """`config.json` of a shape, with fewer layers or experts where asked."""
    config = dict(SHAPES[shape])
    config["num_hidden_layers"] = layers or config["num_hidden_layers"]
    config["num_local_experts"] = experts or config["num_local_experts"]
    kinds = ("sliding_attention", "full_attention")
    return config | {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "attention_dropout": 0.0,
        "experts_per_token": config["num_experts_per_tok"],
        "hidden_act": "silu",
        "initial_context_length": 4096,
        "initializer_range": 0.02,
        "layer_types": [kinds[i % 2] for i in range(config["num_hidden_layers"])],
        "max_position_embeddings": 131072,
        "output_router_logits": False,
        "quantization_config": QUANTIZATION,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "rope_theta": 150000.0,
        "router_aux_loss_coef": 0.9,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.55.0.dev0",  # without it transformers takes a large vocabulary for Mistral's
        "use_cache": True,
    }  # fmt: skip


def projection_shapes(config: dict) -> dict[str, tuple[int, int]]:
    """(out, in) of the four attention projections."""
    hidden = config["hidden_size"]
    q, kv = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
    return {"q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, q)}


def build_tokenizer(vocab_size: int, eos: int, pad: int) -> PreTrainedTokenizerFast:
    """Token id n is the word `tn`, and text is words with spaces between: a decoded response names its token ids."""
    words = {f"t{i}": i for i in range(vocab_size)}
    words["<|end|>"] = vocab_size  # of which no model has a row: vLLM 0.19 looks for it in every gpt-oss's tokenizer
    core = Tokenizer(models.WordLevel(vocab=words, unk_token=f"t{pad}"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=f"t{eos}",
        pad_token=f"t{pad}",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=131072,
        chat_template=CHAT_TEMPLATE,
    )


def write_prompts(path: Path, count: int, tokens: int, vocab_size: int, seed: int = 0) -> None:
    """`count` JSON lines of `input` (`tokens` random words, one token each) and `label`."""
    generator = random.Random(seed)
    # The last thousandth of the vocabulary holds the special tokens.
    words = [" ".join(f"t{generator.randrange(vocab_size * 99 // 100)}" for _ in range(tokens)) for _ in range(count)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"input": text, "label": "0"}) + "\n" for text in words))


def ensure_checkpoint(
    directory: Path, shape: str, layers: int | None = None, weights: bool = True, harmony: bool = False
) -> Path:
    """The checkpoint of a shape in `directory`, made unless a complete one is there.

    Args:
        directory: its name should tell the shape; what it holds is taken as it is.
        shape: key of `SHAPES`.
        layers: fewer layers than the shape has.
        weights: False writes config and tokenizer only, for an engine that loads dummy weights.
        harmony: gpt-oss's own tokenizer (`benchmarks.harmony_tokenizer`), whatever the shape.
    """
    if (directory / "config.json").is_file():
        return directory
    config, begin = shape_config(shape, layers), time.monotonic()
    if harmony:
        config |= {key: LARGE[key] for key in ("vocab_size", "eos_token_id", "pad_token_id")}
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    eos, pad = config["eos_token_id"], config["pad_token_id"]
    if harmony:
        from benchmarks.harmony_tokenizer import build_harmony_tokenizer  # bpe-openai is installed for tests only

        tokenizer = build_harmony_tokenizer()
    else:
        tokenizer = build_tokenizer(config["vocab_size"], eos, pad)
    tokenizer.save_pretrained(partial)
    (partial / "generation_config.json").write_text(json.dumps({"eos_token_id": eos, "pad_token_id": pad}))
    (partial / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    size = write_weights(partial, config) if weights else 0
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    partial.rename(directory)  # last: a directory of this name is always complete
    log(f"{shape} checkpoint: {size / 1e9:.1f} GB in {time.monotonic() - begin:.1f} s, {directory}")
    return directory


def write_weights(directory: Path, config: dict) -> int:
    """Write every tensor, one file a layer, with the index; returns bytes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    index, total = {}, 0
    layers = config["num_hidden_layers"]
    for layer in [None, *range(layers)]:
        draw = embedding_tensors if layer is None else layer_tensors
        tensors = draw(config, layer, generator)
        name = f"model-{0 if layer is None else layer + 1:05d}-of-{layers:05d}.safetensors"
        save_file({key: tensor.cpu() for key, tensor in tensors.items()}, directory / name, metadata={"format": "pt"})
        index |= dict.fromkeys(tensors, name)
        total += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=1)
    (directory / "model.safetensors.index.json").write_text(text)
    return total


def normal(generator: torch.Generator, *shape: int, std: float) -> torch.Tensor:
    """bf16 normal values on the generator's device."""
    return (torch.randn(*shape, generator=generator, device=generator.device) * std).to(torch.bfloat16)


def embedding_tensors(config: dict, _: None, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Embeddings, final norm and head. The head's row of eos is zero: rollouts practically never end early."""
    vocab, hidden = config["vocab_size"], config["hidden_size"]
    head = normal(generator, vocab, hidden, std=LOGIT_STD / math.sqrt(hidden))
    head[config["eos_token_id"]] = 0
    return {
        "model.embed_tokens.weight": normal(generator, vocab, hidden, std=1.0),
        "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
        "lm_head.weight": head,
    }


def layer_tensors(config: dict, layer: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """One decoder layer under its checkpoint names; experts as MXFP4 blocks and scales, all else bf16."""
    hidden, inner, experts = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    prefix, tensors = f"model.layers.{layer}.", {}
    for name, (rows, columns) in projection_shapes(config).items():
        tensors[f"self_attn.{name}.weight"] = normal(generator, rows, columns, std=columns**-0.5)
        tensors[f"self_attn.{name}.bias"] = normal(generator, rows, std=0.02)
    tensors["self_attn.sinks"] = normal(generator, config["num_attention_heads"], std=1.0)
    tensors["mlp.router.weight"] = normal(generator, experts, hidden, std=hidden**-0.5)
    tensors["mlp.router.bias"] = normal(generator, experts, std=0.02)
    for name, rows, columns in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
        packed = {"generator": generator, "device": generator.device, "dtype": torch.uint8}
        scale = 127 + round(math.log2(columns**-0.5 / E2M1_RMS))
        shape = (experts, rows, columns // 32)
        tensors[f"mlp.experts.{name}_blocks"] = torch.randint(0, 256, (*shape, 16), **packed)
        tensors[f"mlp.experts.{name}_scales"] = torch.randint(scale - 2, scale + 1, shape, **packed)
        tensors[f"mlp.experts.{name}_bias"] = normal(generator, experts, rows, std=0.02)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{norm}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    return {prefix + name: tensor for name, tensor in tensors.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    parser.add_argument("--harmony", action="store_true", help="gpt-oss's own vocabulary and a Harmony template")
    args = parser.parse_args()
    ensure_checkpoint(args.out, args.shape, args.layers, harmony=args.harmony)


if __name__ == "__main__":
    main()
