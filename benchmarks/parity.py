"""How far apart are the rollout engine's and the trainer's log-probabilities of the same tokens, by position?

    .venv/bin/python -m benchmarks.parity --out DIR [--work DIR]     one H200, gpt-oss-20b's shape, about two minutes
    .venv/bin/python -m benchmarks.parity --out DIR --shape tiny     the same on a CPU
    .venv/bin/python -m benchmarks.parity --out DIR --tokens 4096 --sequences 8 --syncs 0 --actor eager \\
        --without rotary --without head

vLLM samples (MXFP4 kernels, processed log-probabilities of the sampled tokens, temperature 1); the trainer's `Actor`
(resident, or with `--actor eager` transformers' in bf16), prepared by OpenRLHF's strategy with ZeRO-2, scores the same
tokens. Before
any sync, and after ten syncs of changing adapters, when both hold the tenth. `--without NAME` does the first part
again with a fix switched off, alone and with the other fixes that are named. Controls: the trainer with its rotary
frequencies off by one part in ten million, which is the size of rounding, and the last tokens with its adapter off.

Every number is printed as a line of JSON once it is known, after each sequence.
"""

import argparse
import itertools
import json
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from benchmarks import report
from benchmarks.checkpoint import PROJECTIONS, SHAPES, ensure_checkpoint
from benchmarks.report import log

if TYPE_CHECKING:
    from openrlhf.models import Actor
    from vllm import LLM
    from vllm.v1.worker.worker_base import WorkerBase

NAME = "parity"
SIZES = {  # sequences, tokens of a prompt, tokens in all, LoRA rank
    "20b": {"sequences": 32, "prompt_tokens": 64, "total_tokens": 512, "lora_rank": 32},
    "tiny": {"sequences": 8, "prompt_tokens": 8, "total_tokens": 40, "lora_rank": 8},
}
SYNCS = 10
POSITIONS = (0, 128, 512, 1024, 2048, 4096, 8192, 16384)  # of a token in its sequence: edges of what is told apart
NUDGE = 1e-7  # relative


class Fix(NamedTuple):
    """A fix that can be switched off: `off(actor, llm)` does so while its context lasts.

    `engine` says whether the engine changes too; tokens are then sampled again.
    """

    off: Callable[..., AbstractContextManager]
    engine: bool = False


@contextmanager
def frequencies(actor: "Actor", change: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """The trainer's rotary frequencies are `change(frequencies)` for a while."""
    modules = [module for module in actor.modules() if "inv_freq" in module._buffers]
    kept = [module.inv_freq for module in modules]
    for module, exact in zip(modules, kept, strict=True):
        module.inv_freq = change(exact)
    try:
        yield
    finally:
        for module, exact in zip(modules, kept, strict=True):
            module.inv_freq = exact


@contextmanager
def rounded_logits(actor: "Actor", llm: "LLM") -> Iterator[None]:
    """Trainer and engine compute logits in bf16 for a while, as upstream."""
    head = actor.model.module.get_output_embeddings()
    ours, head.__class__ = head.__class__, torch.nn.Linear
    llm.collective_rpc(swap_head)
    try:
        yield
    finally:
        head.__class__ = ours
        llm.collective_rpc(swap_head)


def swap_head(worker: "WorkerBase") -> None:
    """Change between the engine's head and upstream's; for `LLM.collective_rpc`."""
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    head = worker.model_runner.get_model().lm_head
    other = getattr(head, "rft_other_method", None) or UnquantizedEmbeddingMethod()
    head.rft_other_method, head.quant_method = head.quant_method, other


FIXES = {  # of --without
    "rotary": Fix(lambda actor, llm: frequencies(actor, lambda exact: exact.bfloat16())),
    "head": Fix(rounded_logits, engine=True),
}


def prompts(size: dict, vocab_size: int) -> torch.Tensor:
    """Random token ids (sequences, prompt_tokens), special tokens left out."""
    shape = (size["sequences"], size["prompt_tokens"])
    return torch.randint(vocab_size * 99 // 100, shape, generator=torch.Generator().manual_seed(0))


def rollout(llm: "LLM", prompt_ids: torch.Tensor, new_tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids (sequences, total) of prompts with sampled responses, and the responses' logprobs (sequences, new)."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=1.0, max_tokens=new_tokens, ignore_eos=True, logprobs=0, seed=seed)
    requests = [{"prompt_token_ids": ids} for ids in prompt_ids.tolist()]
    outputs = [output.outputs[0] for output in llm.generate(requests, sampling, use_tqdm=False)]
    responses = torch.tensor([list(output.token_ids) for output in outputs])
    logprobs = [[entry[t].logprob for t, entry in zip(o.token_ids, o.logprobs, strict=True)] for o in outputs]
    return torch.cat([prompt_ids, responses], dim=1), torch.tensor(logprobs)


@torch.no_grad()
def score(actor: "Actor", ids: torch.Tensor, new_tokens: int, at_a_time: int, seen: Callable = lambda rows: None):
    """The trainer's logprobs (sequences, new) of the last tokens; `seen` gets what there is after each micro-batch."""
    device = next(actor.parameters()).device
    rows = []
    for batch in ids.split(at_a_time):
        mask = torch.ones_like(batch, device=device)
        actions = mask[:, -new_tokens:].bool()
        rows.append(actor(batch.to(device), action_mask=actions, attention_mask=mask).float().cpu())
        seen(torch.cat(rows))
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


def by_position(engine: torch.Tensor, trainer: torch.Tensor, first: int) -> dict[str, dict[str, float]]:
    """`distance` of (sequences, new) whose first token is the sequence's `first`, of all and between `POSITIONS`."""
    found = {"all": distance(engine, trainer)}
    for begin, end in itertools.pairwise(POSITIONS):
        part = slice(max(begin - first, 0), max(end - first, 0))
        if engine[:, part].numel():
            found[f"{begin}-{end}"] = distance(engine[:, part], trainer[:, part])
    return found


def load_actor(model: Path, lora_rank: int, which: str):
    """OpenRLHF's Actor over the checkpoint with a zero LoRA adapter, prepared, in evaluation mode."""
    from openrlhf.models import Actor
    from openrlhf.utils.deepspeed import DeepspeedStrategy

    from benchmarks.trainer import alone
    from rft.hooks.moe import keep_training_path

    alone()
    args = types.SimpleNamespace(param_dtype="bf16", local_rank=-1, zpg=1)
    strategy = DeepspeedStrategy(max_norm=1.0, micro_train_batch_size=1, train_batch_size=1, zero_stage=2, args=args)
    strategy.setup_distributed()
    actor = Actor(
        str(model),
        attn_implementation="eager",
        lora_rank=lora_rank,
        lora_alpha=2 * lora_rank,
        target_modules=list(PROJECTIONS),
        ds_config=strategy.get_ds_train_config(is_actor=True),
        device_map={"": 0} if torch.cuda.is_available() else None,
        head_dtype="float32",
        actor=which,
    )
    optimizer = strategy.create_optimizer(actor, lr=1e-4, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    actor, *_ = strategy.prepare((actor, optimizer, scheduler), is_rlhf=True)
    actor.eval()
    keep_training_path(actor)  # as in the pass over the samples
    return actor


def body(record: dict) -> str:
    """The markdown below the header."""
    rows = []
    for found in record["parts"].values():
        for title, positions in found.get("distances", {}).items():
            rows += [(title, name, *numbers.values()) for name, numbers in positions.items()]
    if not rows:
        return "Nothing was compared."
    names = ("tokens", "mean abs Δ", "p99 abs Δ", "max abs Δ", "mean Δ", "k3 KL", "engine's mean logprob")
    settings = ", ".join(f"{key} {value}" for key, value in record["settings"].items())
    table = report.markdown(("", "positions", *names), rows)
    return f"nats a token; Δ is trainer minus engine; {settings}\n\n{table}"


def settings(args: argparse.Namespace) -> dict:
    size = dict(SIZES[args.shape])
    for name, value in (("total_tokens", args.tokens), ("sequences", args.sequences)):
        if value:
            size[name] = value
    layers = args.layers or SHAPES[args.shape]["num_hidden_layers"]
    return {"shape": args.shape, **size, "layers": layers, "actor": args.actor, "cuda_graphs": args.cuda_graphs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--work", type=Path, default=Path("/tmp/rft-bench"), help="folder of checkpoints")
    parser.add_argument("--shape", choices=SIZES, default="20b")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has: less room for routing to diverge")
    parser.add_argument("--tokens", type=int, help="of a sequence, prompt included")
    parser.add_argument("--sequences", type=int)
    parser.add_argument("--actor", choices=("resident", "eager"), default="resident")
    parser.add_argument("--syncs", type=int, default=SYNCS, help="0 leaves that part out")
    parser.add_argument("--without", choices=FIXES, action="append", default=[], help="switch a fix off; repeat it")
    parser.add_argument("--cuda-graphs", action="store_true", help="slower to start; the default engine is eager")
    args = parser.parse_args()
    if args.without and args.actor != "eager":
        parser.error("--without switches fixes of transformers' model off: add --actor eager")
    from benchmarks.trainer import randomize_adapter
    from rft.hooks.lora_sync import lora_layers, pack_adapter
    from rft.serving.engine import open_engine, sync_engine

    out, work, size = args.out.resolve(), args.work.resolve(), settings(args)
    first, new_tokens = size["prompt_tokens"], size["total_tokens"] - size["prompt_tokens"]
    at_a_time = 2 if size["total_tokens"] <= 1024 else 1  # as in training, and what eager attention has room for
    record = report.describe() | {"settings": size}
    name = "_".join([NAME, *["eager"] * (args.actor == "eager"), *([f"{args.layers}_layers"] if args.layers else [])])

    def publish() -> None:
        report.save(out, name, record, body(record))

    def compare(found: dict, title: str, engine: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Score `ids`, and say after each micro-batch how far that is from `engine`; returns the logprobs."""

        def seen(rows: torch.Tensor) -> None:
            positions = by_position(engine[: len(rows)], rows, first)
            found.setdefault("distances", {})[title] = positions
            print(json.dumps({"compared": title, "sequences": len(rows), "positions": positions}), flush=True)
            publish()

        return score(actor, ids, new_tokens, at_a_time, seen)

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
            compilation_config={"cudagraph_capture_sizes": [size["sequences"]]} if args.cuda_graphs else None,
            lora_rank=size["lora_rank"],
            lora_modules=list(PROJECTIONS),
        )
        log("engine: ready")
        actor = load_actor(model, size["lora_rank"], args.actor)
        log("trainer: ready")
        ids = prompts(size, SHAPES[args.shape]["vocab_size"])
    if report.exit_code(record):
        return 1
    with report.part(record, "before any sync", publish) as found:
        sampled = rollout(llm, ids, new_tokens, seed=1)
        log("sampled")
        tokens, engine = sampled
        trainer = compare(found, "before any sync", engine, tokens)
        with frequencies(actor, lambda exact: exact * (1 + NUDGE)):
            compare(found, f"control: trainer against itself, frequencies off by {NUDGE:g}", trainer, tokens)
    without = list(dict.fromkeys(args.without))
    for count in range(1, len(without) + 1):
        for fixes in itertools.combinations(without, count):
            title = f"without {' and '.join(fixes)}"
            with report.part(record, title, publish) as found, ExitStack() as off:
                for fix in fixes:
                    off.enter_context(FIXES[fix].off(actor, llm))
                again = any(FIXES[fix].engine for fix in fixes)
                tokens, engine = rollout(llm, ids, new_tokens, seed=1) if again else sampled
                compare(found, title, engine, tokens)
    if args.syncs:
        title = f"after {args.syncs} syncs"
        with report.part(record, title, publish) as found:
            peft = actor.model.module
            found["sync_seconds"], found["receipts"] = [], []
            for version in range(1, args.syncs + 1):
                randomize_adapter(peft, seed=version)
                begin = time.perf_counter()
                receipts = sync_engine(llm, *pack_adapter(lora_layers(peft), version))
                found["sync_seconds"].append(time.perf_counter() - begin)
                found["receipts"].append(receipts)
            tokens, engine = rollout(llm, ids, new_tokens, seed=2)
            compare(found, title, engine, tokens)
            with peft.disable_adapter():
                compare(found, "control: the same tokens, trainer's adapter off", engine, tokens)
    llm.llm_engine.engine_core.shutdown()
    log(f"results: {out / name}.json, {out / name}.md")
    return report.exit_code(record)


if __name__ == "__main__":
    sys.exit(main())
