"""How far apart are the rollout engine's and the trainer's log-probabilities of the same tokens?

    python -m benchmarks.parity --out DIR [--work DIR]             one H200, gpt-oss-20b's shape, about two minutes
    python -m benchmarks.parity --out DIR --shape tiny             the same on a CPU

vLLM samples (MXFP4 kernels, processed log-probabilities of the sampled tokens, temperature 1); the trainer's `Actor`
(bf16 dequantised, PEFT, eager attention) scores the same tokens. Before any sync, and after ten syncs of changing
adapters, when both hold the tenth. As a control, the last tokens are also scored with the trainer's adapter off.
"""

import argparse
import sys
import time
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.checkpoint import PROJECTIONS, SHAPES, ensure_checkpoint
from benchmarks.report import log

NAME = "parity"
SIZES = {  # sequences, tokens of a prompt, tokens in all, LoRA rank
    "20b": {"sequences": 32, "prompt_tokens": 64, "total_tokens": 512, "lora_rank": 32},
    "tiny": {"sequences": 8, "prompt_tokens": 8, "total_tokens": 40, "lora_rank": 8},
}
SYNCS = 10


def prompts(size: dict, vocab_size: int) -> torch.Tensor:
    """Random token ids (sequences, prompt_tokens), special tokens left out."""
    shape = (size["sequences"], size["prompt_tokens"])
    return torch.randint(vocab_size * 99 // 100, shape, generator=torch.Generator().manual_seed(0))


def rollout(llm, prompt_ids: torch.Tensor, new_tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids (sequences, total) of prompts with sampled responses, and the responses' logprobs (sequences, new)."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=1.0, max_tokens=new_tokens, ignore_eos=True, logprobs=0, seed=seed)
    requests = [{"prompt_token_ids": ids} for ids in prompt_ids.tolist()]
    outputs = [output.outputs[0] for output in llm.generate(requests, sampling, use_tqdm=False)]
    responses = torch.tensor([list(output.token_ids) for output in outputs])
    logprobs = [[entry[t].logprob for t, entry in zip(o.token_ids, o.logprobs, strict=True)] for o in outputs]
    return torch.cat([prompt_ids, responses], dim=1), torch.tensor(logprobs)


@torch.no_grad()
def score(actor, ids: torch.Tensor, new_tokens: int, at_a_time: int = 2) -> torch.Tensor:
    """The trainer's logprobs (sequences, new) of the last tokens, two sequences at a time as in training."""
    device = next(actor.parameters()).device
    rows = []
    for batch in ids.split(at_a_time):
        mask = torch.ones_like(batch, device=device)
        actions = mask[:, -new_tokens:].bool()
        rows.append(actor(batch.to(device), action_mask=actions, attention_mask=mask).float().cpu())
    return torch.cat(rows)


def distance(engine: torch.Tensor, trainer: torch.Tensor) -> dict[str, float]:
    """Mean, p99 and maximum of |Δ logprob|, and KL(engine ‖ trainer) by the k3 estimator, nats a token.

    k3 is `r - 1 - log r` with `r = p_trainer / p_engine` at tokens that the engine sampled (Schulman, "Approximating KL
    Divergence", 2020).
    """
    difference = (trainer - engine).double().flatten()
    size = difference.abs()
    return {
        "tokens": difference.numel(),
        "mean_abs": size.mean().item(),
        "p99_abs": size.quantile(0.99).item(),
        "max_abs": size.max().item(),
        "mean": difference.mean().item(),
        "k3": (difference.exp() - 1 - difference).mean().item(),
        "engine_mean_logprob": engine.double().mean().item(),
    }


def load_actor(model: Path, lora_rank: int):
    """OpenRLHF's Actor over the dequantised checkpoint with a zero LoRA adapter, in evaluation mode."""
    from openrlhf.models import Actor

    actor = Actor(
        str(model),
        attn_implementation="eager",
        lora_rank=lora_rank,
        lora_alpha=2 * lora_rank,
        target_modules=list(PROJECTIONS),
        device_map={"": 0} if torch.cuda.is_available() else None,
    )
    for parameter in actor.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)  # PEFT makes A and B in float32; DeepSpeed trains in bf16
    return actor.eval()


def body(record: dict) -> str:
    """The markdown below the header."""
    rows = []
    for found in record["parts"].values():
        for title, numbers in found.get("distances", {}).items():
            rows.append((title, *numbers.values()))
    if not rows:
        return "Nothing was compared."
    header = ("", "tokens", "mean abs Δ", "p99 abs Δ", "max abs Δ", "mean Δ", "k3 KL", "engine's mean logprob")
    settings = ", ".join(f"{key} {value}" for key, value in record["settings"].items())
    return f"nats a token; Δ is trainer minus engine; {settings}\n\n" + report.markdown(header, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--work", type=Path, default=Path("/tmp/rft-bench"), help="folder of checkpoints")
    parser.add_argument("--shape", choices=SIZES, default="20b")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has: less room for routing to diverge")
    parser.add_argument("--cuda-graphs", action="store_true", help="slower to start; the default engine is eager")
    args = parser.parse_args()
    from benchmarks.trainer import randomize_adapter
    from rft.engine import open_engine, sync_engine
    from rft.hooks.lora_sync import lora_layers, pack_adapter

    out, work, size = args.out.resolve(), args.work.resolve(), SIZES[args.shape]
    new_tokens = size["total_tokens"] - size["prompt_tokens"]
    record = report.describe() | {"settings": {"shape": args.shape, **size, "cuda_graphs": args.cuda_graphs}}
    record["settings"]["layers"] = args.layers or SHAPES[args.shape]["num_hidden_layers"]
    name = f"{NAME}_{args.layers}_layers" if args.layers else NAME

    def publish() -> None:
        report.save(out, name, record, body(record))

    with report.part(record, "load", publish):
        model = ensure_checkpoint(
            work / f"{args.shape}{f'-{args.layers}' if args.layers else ''}", args.shape, args.layers
        )
        llm = open_engine(
            str(model),
            max_model_len=size["total_tokens"],
            enforce_eager=not args.cuda_graphs,
            logprobs_mode="processed_logprobs",
            gpu_memory_utilization=0.25,
        )
        log("engine: ready")
        actor = load_actor(model, size["lora_rank"])
        ids = prompts(size, SHAPES[args.shape]["vocab_size"])
    if report.exit_code(record):
        return 1
    with report.part(record, "before any sync", publish) as found:
        tokens, engine = rollout(llm, ids, new_tokens, seed=1)
        trainer = score(actor, tokens, new_tokens)
        found["distances"] = {"before any sync": distance(engine, trainer)}
        again = score(actor, tokens, new_tokens, at_a_time=4)
        found["distances"]["control: trainer against itself, other micro-batches"] = distance(trainer, again)
    with report.part(record, f"after {SYNCS} syncs", publish) as found:
        found["sync_seconds"], found["receipts"] = [], []
        for version in range(1, SYNCS + 1):
            randomize_adapter(actor.model, seed=version)
            begin = time.perf_counter()
            receipts = sync_engine(llm, *pack_adapter(lora_layers(actor.model), version))
            found["sync_seconds"].append(time.perf_counter() - begin)
            found["receipts"].append(receipts)
        tokens, engine = rollout(llm, ids, new_tokens, seed=2)
        found["distances"] = {f"after {SYNCS} syncs": distance(engine, score(actor, tokens, new_tokens))}
        publish()
        with actor.model.disable_adapter():
            base = score(actor, tokens, new_tokens)
        found["distances"]["control: the same tokens, trainer's adapter off"] = distance(engine, base)
    llm.llm_engine.engine_core.shutdown()
    log(f"results: {out / name}.json, {out / name}.md")
    return report.exit_code(record)


if __name__ == "__main__":
    sys.exit(main())
