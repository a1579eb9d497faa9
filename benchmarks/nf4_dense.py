"""`--load_in_4bit` on a dense model: three GRPO steps with an NF4 actor (bitsandbytes), LoRA and its sync, on one GPU.

    .venv/bin/python -m benchmarks.nf4_dense --out DIR [--work DIR] [OPENRLHF OPTION …]

The engine serves the bf16 checkpoint plus the adapter, the trainer computes with the NF4 base plus the same adapter, so
the mismatch metrics show what the quantisation of the base costs. `--bf16` runs the same without it, for comparison.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.checkpoint import build_tokenizer, write_prompts
from benchmarks.ray_head import ray_head
from benchmarks.report import log
from benchmarks.whole_loop import command, run

NAME = "nf4_dense"
SIZE = {"prompts": 8, "samples": 4, "prompt_tokens": 32, "response_tokens": 64, "micro_batch": 4}
LAYERS, VOCABULARY, STEPS = 8, 32000, 3


def make_checkpoint(directory: Path) -> Path:
    """A random dense Qwen2 of 0.2 B parameters, bf16."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    if not (directory / "config.json").is_file():
        config = Qwen2Config(
            vocab_size=VOCABULARY, hidden_size=1024, intermediate_size=2816, num_hidden_layers=LAYERS,
            num_attention_heads=16, num_key_value_heads=4, max_position_embeddings=2048, tie_word_embeddings=False,
            eos_token_id=VOCABULARY - 2, pad_token_id=VOCABULARY - 1,
        )  # fmt: skip
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
        build_tokenizer(VOCABULARY, VOCABULARY - 2, VOCABULARY - 1).save_pretrained(directory)
    return directory


def body(record: dict) -> str:
    """The markdown below the header."""
    rows = []
    for name, found in record["parts"].items():
        for step in found.get("steps", []):
            keys = ("grad_norm", "mismatch_abs_mean", "mismatch_kl", "sync_layers", "sync_changed_share")
            rows.append((name, int(step["global_step"]), *(step[key] for key in keys)))
    header = ("base", "step", "grad norm", "mean abs mismatch", "mismatch KL", "layers synced", "weights changed")
    return report.markdown(header, rows) if rows else "No training step was finished."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.allow_abbrev = False  # what it does not know is an option of the trainer, and may look like one of these
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--work", type=Path, default=Path("/tmp/rft-bench"), help="folder of checkpoints")
    parser.add_argument("--bf16", action="store_true", help="also without quantisation")
    args, extra = parser.parse_known_args()
    out, work, record = args.out.resolve(), args.work.resolve(), report.describe()
    model = make_checkpoint(work / "dense")
    for base in ("nf4", "bf16") if args.bf16 else ("nf4",):
        run_dir = work / f"{NAME}-{base}-{os.getpid()}"
        prompts = run_dir / "prompts.jsonl"
        write_prompts(prompts, STEPS * SIZE["prompts"], SIZE["prompt_tokens"], VOCABULARY)
        options = ["--zero_stage", "2", "--actor_learning_rate", "1e-3", "--lr_warmup_ratio", "0", *extra]
        options += ["--load_in_4bit"] if base == "nf4" else []
        os.environ["METRICS_LOG_DIR"] = str(run_dir / "metrics")
        with report.part(record, base, lambda: report.save(out, NAME, record, body(record))) as found:
            found["steps"] = []
            with ray_head(run_dir) as address:
                os.environ["RAY_ADDRESS"] = address
                words = command(model, prompts, run_dir, SIZE, options)
                run(words, out / f"{NAME}-{base}.log", time.monotonic() + 240, found["steps"].append)
            if [step["sync_layers"] for step in found["steps"]] != [4 * LAYERS] * STEPS:
                raise RuntimeError(f"wanted {STEPS} steps that each sync {4 * LAYERS} layers: {found['steps']}")
            log(f"{base}: {STEPS} steps")
    return report.exit_code(record)


if __name__ == "__main__":
    sys.exit(main())
