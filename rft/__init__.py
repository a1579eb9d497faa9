"""rft: train gpt-oss with GRPO, LoRA and MXFP4 on a patched stock OpenRLHF and vLLM."""

__version__ = "0.1.0"
