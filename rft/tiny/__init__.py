"""The tiny gpt-oss: model, tokenizer, arithmetic task and warm start, all made locally and deterministic by seed."""
