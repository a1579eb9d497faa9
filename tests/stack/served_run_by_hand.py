"""A finished run by hand: an adapter of the tiny gpt-oss, what it was trained with, and one problem."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from rft.problems import problem_row
from rft.record.digest import tree_digest

SHAPES = {"q_proj": (128, 128), "k_proj": (64, 128), "v_proj": (64, 128), "o_proj": (128, 128)}  # (out, in)
RANK = 4


def save_adapter(folder: Path, base: Path, scale: float = 0.05, seed: int = 0) -> None:
    """A random adapter of both layers' attention, as the trainer saves one."""
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for layer in range(2):
        for name, (out_features, in_features) in SHAPES.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            a = torch.randn(RANK, in_features, generator=generator) * scale
            b = torch.randn(out_features, RANK, generator=generator) * scale
            tensors |= {f"{prefix}.lora_A.weight": a.bfloat16(), f"{prefix}.lora_B.weight": b.bfloat16()}
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK, "lora_dropout": 0.0}
    config |= {"target_modules": list(SHAPES), "base_model_name_or_path": str(base)}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")


def finished(run: Path, base: Path) -> Path:
    """The run's directory, with the adapter of its end and, in `best.json`, another one."""
    save_adapter(run / "adapter", base)
    save_adapter(run / "checkpoints/best_step3_hf", base, seed=1)
    problems = run / "heldout.jsonl"
    problems.write_text(json.dumps(problem_row("2 + 3 =", "5", "sum/2+3", "sums")) + "\n")
    command = [
        ".venv/bin/python",
        "-m",
        "openrlhf.cli.train_ppo_ray",
        "--pretrain",
        str(base),
        "--lora_rank",
        str(RANK),
    ]
    command += ["--target_modules", *SHAPES, "--eval_dataset", str(problems), "--actor_learning_rate", "3e-3"]
    command += ["--prompt_max_len", "96", "--generate_max_len", "32", "--use_wandb", "a-secret-key"]
    manifest = {
        "command": command,
        "git": {"commit": "0123abcd", "dirty": True},
        "tree_id": {"openrlhf": "aaaa", "vllm": "bbbb"},
        "versions": {"openrlhf": "0.9.3"},
        "rft": "0.1.0",
        "started": "2026-11-22T10:00:00+00:00",
        "inputs": {str(base): tree_digest(base), str(problems): "eeee" * 16},
    }
    (run / "run.json").write_text(json.dumps(manifest))
    best = {"global_step": 3, "metric": "eval_heldout_greedy_pass@1", "value": 0.9}
    (run / "best.json").write_text(json.dumps(best | {"checkpoint": str(run / "checkpoints/best_step3_hf")}))
    return run


def with_result(run: Path) -> None:
    """What the summary writes: 0.5 before, 0.75 after, on one set of 200 problems."""

    def result(value: float, **more: object) -> dict:
        return {
            "mode": "greedy_pass@1",
            "greedy_pass@1": value,
            "dataset": "heldout.jsonl",
            "n": 200,
            "interval95": [value - 0.06, value + 0.06],
            **more,
        }

    versus = {"difference": 0.25, "interval95": [0.18, 0.32], "p_value": 1.2e-9}
    content = {"before": result(0.5), "after": result(0.75, versus=versus), "steps": 16}
    (run / "result.json").write_text(json.dumps(content))
