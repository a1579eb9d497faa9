"""An untrained dense model: vLLM on a CPU packs experts when it loads them, so theirs cannot be replaced later."""

from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rft.tiny.tokenizer import build_tokenizer


def make_dense_checkpoint(directory: Path) -> Path:
    """Two layers, 128 hidden, bf16, with the tiny tokenizer."""
    tokenizer = build_tokenizer()
    config = Qwen2Config(
        vocab_size=-(-len(tokenizer) // 64) * 64, hidden_size=128, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
