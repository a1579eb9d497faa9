"""Two ranks hold half of the experts each: what they compute must be what one rank with all experts computes.

python sharded_experts.py CHECKPOINT OUT        with RANK, LOCAL_RANK, WORLD_SIZE, …

Every rank makes passes on its own tokens, with layers recomputed or not and with or without gradient; rank 0 keeps the
experts' first products, rank 1 computes them again: all that may differ between GPUs of one run. It writes `WAY.NAME`
of log-probabilities and adapter gradients for WAY whole and sharded, and the share of all packed bytes that it holds.
"""

import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file

from rft.actor import model as resident
from rft.actor.load import load_resident
from rft.actor.packed import pack
from rft.hooks import lora_exact

LENGTHS = [[33, 7, 60], [90]]  # by rank


def adapted(checkpoint: str, shard: int, recompute: bool) -> torch.nn.Module:
    model = load_resident(checkpoint, "cpu", shard=shard)
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])).train()
    lora_exact.install(model)
    generator = torch.Generator().manual_seed(5)
    for _, parameter in sorted(model.named_parameters()):
        if parameter.requires_grad:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
    if recompute:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def passes(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Three steps of a scoring pass and an update, so that what is fetched ahead is used; the last one's numbers."""
    rank = torch.distributed.get_rank()
    generator, lengths = torch.Generator().manual_seed(rank), LENGTHS[rank]
    for _ in range(3):
        tokens, rows = torch.randint(5, 60, (sum(lengths),), generator=generator), torch.arange(0, 30)
        call = {"packed": pack(lengths, tokens.device), "rows": rows, "targets": tokens[rows + 1]}
        model.zero_grad()
        with torch.no_grad():
            model(tokens, **call)
        log_probs, _ = model(tokens, **call)
        log_probs.sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    return {"log_probs": log_probs.detach(), **gradients}


def main(checkpoint: str, out: str) -> None:
    torch.distributed.init_process_group("gloo")
    resident.keeps_first_products = lambda *_: torch.distributed.get_rank() == 0
    found, held = {}, {}
    for recompute in (False, True):
        for way, shard in (("whole", 1), ("sharded", 2)):
            model = adapted(checkpoint, shard, recompute)
            found |= {f"{way}.{recompute}.{name}": tensor.contiguous() for name, tensor in passes(model).items()}
            held[way] = sum(b.numel() for name, b in model.named_buffers() if ".experts." in name)
    found["share"] = torch.tensor(held["sharded"] / held["whole"])
    save_file(found, f"{out}.{torch.distributed.get_rank()}")
    torch.distributed.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
