"""A supervised step of the tiny actor by OpenRLHF's `SFTTrainer` and DeepSpeed, in float32; rank 0 writes what it saw.

python sft_checks.py CHECKPOINT OUT.safetensors MICRO_TRAIN_TOKENS …     with RANK, …; 0: micro-batches of a row

The file has the whole gradient of each budget, (adapter elements,), before clipping; OUT.json of each the step's loss,
the `rows` of every micro-batch by rank, and the loss on all of `ROWS` as held-out rows.
"""

import json
import os
import sys
import types
from pathlib import Path

import torch
from transformers import AutoTokenizer

ASK = {"role": "user", "content": "12 + 34"}
TURN = {"role": "assistant", "thinking": "2+4=6, 1+3=4", "content": "\\boxed{46}"}
ROWS = [
    {"input": [ASK], "output": [{**TURN, "thinking": thinking}]}
    for thinking in ("2+4=6", "1+3=4, " * 9, "6", "2+4=6, 1+3=4", "left out: it makes no whole step")
]
STEP = 4  # rows of an optimizer step
LORA = {"lora_rank": 8, "lora_alpha": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}


def dataset(checkpoint, rows: list[dict], max_len: int = 1000, **options):
    """OpenRLHF's own, and what it printed; its strategy is asked for options and to print."""
    import datasets
    from openrlhf.datasets import SFTDataset

    keys = {"input_key": "input", "output_key": options.pop("output_key", None), "apply_chat_template": True}
    printed = []
    strategy = types.SimpleNamespace(args=types.SimpleNamespace(**keys), print=printed.append)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, padding_side="right")
    made = SFTDataset(datasets.Dataset.from_list(rows), tokenizer, max_len, strategy, num_processors=None, **options)
    return made, printed


def float32_actor(checkpoint, **options):
    """The eager actor with an adapter that is the same in every process; and the adapter's parameters."""
    from openrlhf.models import Actor

    actor = Actor(str(checkpoint), attn_implementation="eager", **LORA, **options)
    actor.model.float()
    trained = [parameter for parameter in actor.model.parameters() if parameter.requires_grad]
    generator = torch.Generator().manual_seed(0)
    for parameter in trained:
        parameter.data = torch.randn(parameter.shape, generator=generator) / 20
    return actor, trained


def by_hand(actor, made, places) -> tuple[torch.Tensor, int]:
    """Summed loss and number of the learned tokens of some rows, each row alone and without padding."""
    loss, tokens = 0.0, 0
    for place in places:
        ids, _, mask = made[place]
        log_probs = torch.log_softmax(actor.model(input_ids=ids).logits.double(), -1)[0, :-1]
        chosen = log_probs[torch.arange(ids.shape[1] - 1), ids[0, 1:]][mask[0, :-1].bool()]
        loss, tokens = loss - chosen.sum(), tokens + len(chosen)
    return loss, tokens


def run_args(budget: int) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        aux_loss_coef=0, packing_samples=False, use_wandb=None, use_tensorboard=None, eval_steps=-1, save_steps=-1,
        train_batch_size=STEP, micro_train_batch_size=1, logging_steps=1, use_dynamic_batch=budget > 0,
        micro_train_tokens=budget, param_dtype="fp32", local_rank=-1,
    )  # fmt: skip


def step(checkpoint: str, budget: int) -> tuple[torch.Tensor, dict]:
    from deepspeed.utils import safe_get_full_grad
    from openrlhf.trainer.sft_trainer import SFTTrainer
    from openrlhf.utils.deepspeed import DeepspeedStrategy

    args, sizes = run_args(budget), {"micro_train_batch_size": 1, "train_batch_size": STEP}
    strategy = DeepspeedStrategy(max_norm=1.0, zero_stage=2, args=args, **sizes)
    strategy.setup_distributed()
    actor, _ = float32_actor(checkpoint, ds_config=strategy.get_ds_train_config(is_actor=True))
    optimizer = strategy.create_optimizer(actor, lr=1e-3, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    actor, optimizer, scheduler = strategy.prepare((actor, optimizer, scheduler))
    made, _ = dataset(checkpoint, ROWS, output_key="output")
    loader = strategy.setup_dataloader(made, 1, False, False, made.collate_fn)
    kept = strategy.setup_dataloader(made, 1, False, False, made.collate_fn, drop_last=False)
    trainer = SFTTrainer(actor, strategy, optimizer, loader, kept, scheduler, batch_size=STEP, max_epochs=1)
    gradients, seen, rows, stock = [], {}, [], strategy.optimizer_step

    def observed(optimizer, model, scheduler):
        if model.model.is_gradient_accumulation_boundary():
            found = [safe_get_full_grad(p) for p in model.model.module.parameters() if p.requires_grad]
            gradients.append(torch.cat([each.flatten() for each in found]))
        stock(optimizer, model, scheduler)

    def count(_, inputs):
        if actor.training:
            rows.append(len(inputs[0]))

    strategy.optimizer_step = observed
    trainer.save_logs_and_checkpoints = lambda args, number, bar, logs, state: seen.update(logs, step=number)
    watch = actor.register_forward_pre_hook(count)
    with torch.no_grad():
        trainer.evaluate(kept)
    trainer.fit(args, 0, 1)
    watch.remove()
    return gradients[-1], {"loss": strategy.all_reduce(seen["loss_mean"]), "rows": rows, "steps": len(gradients)}


def main(checkpoint: str, out: str, *budgets: str) -> None:
    from rft.hooks import sft_run

    gradients, seen, stock = {}, {}, sft_run.log_evaluation
    held_out = []
    sft_run.log_evaluation = lambda *args: held_out.append(stock(*args)) or held_out[-1]
    for budget in budgets:
        gradients[budget], seen[budget] = step(checkpoint, int(budget))
        every = [None] * int(os.environ["WORLD_SIZE"])
        torch.distributed.all_gather_object(every, seen[budget].pop("rows"))
        seen[budget] |= {"rows": every, "held_out": held_out[-1]["sft_eval_loss"]}
    if torch.distributed.get_rank() == 0:
        from safetensors.torch import save_file

        save_file(gradients, out)
        Path(out).with_suffix(".json").write_text(json.dumps(seen))
    torch.distributed.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
