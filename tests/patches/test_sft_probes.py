"""Supervised training: what the patched dataset gives the trainer, and what is refused before a model is loaded."""

import types

import pytest
import torch
from ranks import run_module
from transformers import AutoTokenizer

ASK = {"role": "user", "content": "12 + 34"}
TURN = {"role": "assistant", "thinking": "2+4=6, 1+3=4", "content": "\\boxed{46}"}
ROW = {"input": [ASK, TURN, {"role": "user", "content": "4 + 5"}, {**TURN, "thinking": "9", "content": "\\boxed{9}"}]}
LEARNED = [
    f"<|channel|>analysis<|message|>{thinking}<|end|><|start|>assistant<|channel|>final<|message|>{content}<|return|>"
    for thinking, content in (("2+4=6, 1+3=4", "\\boxed{46}"), ("9", "\\boxed{9}"))
]


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


def learned(made, tokenizer) -> list[str]:
    """The tokens whose prediction the loss has, of each conversation of a padded batch, as text."""
    ids, attention, mask = made.collate_fn([made[place] for place in range(len(made))])
    assert (ids.shape, attention.shape) == (mask.shape, mask.shape)
    assert not mask[attention == 0].any() and not mask[..., -1].any()
    return [tokenizer.decode(row[1:][of[:-1].bool()]) for row, of in zip(ids, mask, strict=True)]


def test_supervised_turns_are_learned_as_they_are_sampled(checkpoint):
    """Each with its analysis, no word of the user; the last alone without --multiturn."""
    every, printed = dataset(checkpoint, [ROW], multiturn=True)
    assert learned(every, every.tokenizer) == LEARNED
    last, _ = dataset(checkpoint, [ROW])
    assert learned(last, last.tokenizer) == LEARNED[1:]
    assert printed[0].startswith("supervised rows: 2 conversations with")


def test_supervised_rows_that_are_too_long_are_left_out(checkpoint):
    rows = [{"input": [ASK], "output": [TURN]}, {"input": [ASK], "output": [{**TURN, "thinking": "1+2=3, " * 40}]}]
    whole, _ = dataset(checkpoint, rows, output_key="output")
    assert len(whole) == 2 and whole[1][0].shape[1] > 200
    made, printed = dataset(checkpoint, rows, 200, output_key="output")
    assert learned(made, made.tokenizer) == LEARNED[:1] and "1 longer than --max_len 200 left out" in printed[0]
    with pytest.raises(SystemExit, match="error: row 1: found user as the last message's role"):
        dataset(checkpoint, [{"input": [ASK]}])


@pytest.mark.parametrize("options", [["--attn_implementation", "flash_attention_2"], ["--packing_samples"]])
def test_supervised_training_of_gpt_oss_without_sinks_is_refused(checkpoint, options):
    """Upstream's default is FlashAttention 2, and packing asks for it."""
    given = ["--pretrain", checkpoint, "--dataset", "rows.jsonl", "--actor", "eager"]
    done = run_module("openrlhf.cli.train_sft", *given, *options)
    assert done.returncode == 1, done.stdout
    assert "gpt-oss cannot be trained like this" in done.stdout and "Traceback" not in done.stdout


ROWS = [
    {"input": [ASK], "output": [{**TURN, "thinking": thinking}]}
    for thinking in ("2+4=6", "1+3=4, " * 9, "6", "2+4=6, 1+3=4", "left out: it makes no whole step")
]


def test_a_supervised_step_is_one_mean_whatever_its_split(checkpoint, monkeypatch):
    """The trainer's own loop over four rows, against the loss written by hand, each row alone and without padding."""
    from openrlhf.models import Actor

    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")  # what upstream asks for, where there is none
    lora = {"lora_rank": 8, "lora_alpha": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
    actor = Actor(str(checkpoint), attn_implementation="eager", **lora)
    actor.model.float()
    trained = [parameter for parameter in actor.model.parameters() if parameter.requires_grad]
    generator = torch.Generator().manual_seed(0)
    for parameter in trained:
        parameter.data = torch.randn(parameter.shape, generator=generator) / 20
    made, _ = dataset(checkpoint, ROWS, output_key="output")
    loss, tokens = 0.0, 0
    for place in range(4):
        ids, _, mask = made[place]
        log_probs = torch.log_softmax(actor.model(input_ids=ids).logits.double(), -1)[0, :-1]
        chosen = log_probs[torch.arange(ids.shape[1] - 1), ids[0, 1:]][mask[0, :-1].bool()]
        loss, tokens = loss - chosen.sum(), tokens + len(chosen)
    wanted = torch.autograd.grad(loss / tokens, trained)
    norm = torch.cat([each.flatten() for each in wanted]).norm()
    for size in (1, 2, 4):
        (found,), means = steps(actor, made, trained, size)
        difference = torch.cat([(a - b).flatten() for a, b in zip(found, wanted, strict=True)]).norm()
        print(f"micro-batches of {size}: relative distance of the gradient {difference / norm:.1e}, loss {means[0]}")
        assert difference / norm < 1e-4  # float32
        assert means == pytest.approx([(loss / tokens).item()], rel=1e-5)


def test_the_resident_actor_learns_the_same_tokens(checkpoint, monkeypatch):
    """Its loss is that of transformers' model, both in bf16; its options are the trainer's."""
    from openrlhf.models import Actor

    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    assert "--shard_experts" in run_module("openrlhf.cli.train_sft", "--help").stdout
    lora = {"lora_rank": 8, "lora_alpha": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
    lora |= {"attn_implementation": "eager", "head_dtype": "float32"}
    made, _ = dataset(checkpoint, ROWS, output_key="output")
    means = {}
    for kind in ("resident", "eager"):
        actor = Actor(str(checkpoint), actor=kind, **lora)
        trained = [parameter for parameter in actor.model.parameters() if parameter.requires_grad]
        (gradient,), means[kind] = steps(actor, made, trained, 2)
        assert all(each.isfinite().all() for each in gradient) and any(each.any() for each in gradient)
    assert means["resident"] == pytest.approx(means["eager"], rel=2**-6)  # of two layers, two roundings each


def steps(actor, made, trained, size: int) -> tuple[list, list[float]]:
    """The gradient and the mean loss of each optimizer step of OpenRLHF's trainer, in micro-batches of `size`.

    Around it stands what DeepSpeed does with one rank: it divides by the number of micro-batches of a step.
    """
    from openrlhf.trainer.sft_trainer import SFTTrainer
    from torch.utils.data import DataLoader

    each, gradients, means, seen = 4 // size, [], [], []

    def optimizer_step(*_):
        seen.append(1)
        if len(seen) % each == 0:
            gradients.append([parameter.grad.clone() for parameter in trained])
            for parameter in trained:
                parameter.grad = None

    args = types.SimpleNamespace(
        aux_loss_coef=0, packing_samples=False, use_wandb=None, use_tensorboard=None, eval_steps=-1, save_steps=-1,
        train_batch_size=4, logging_steps=1,
    )  # fmt: skip
    strategy = types.SimpleNamespace(
        args=args, accumulated_gradient=each, world_size=1, ring_attn_group=None, is_rank_0=lambda: False,
        all_reduce=lambda value, op="mean": value, optimizer_step=optimizer_step,
        backward=lambda loss, model, optimizer: (loss / each).backward(), get_grad_norm=lambda model: 0.0,
    )  # fmt: skip
    scheduler = types.SimpleNamespace(get_last_lr=lambda: [0.0])
    loader = DataLoader(made, batch_size=size, collate_fn=made.collate_fn, drop_last=True)
    trainer = SFTTrainer(actor, strategy, None, loader, None, scheduler, batch_size=4, max_epochs=1)
    trainer.save_logs_and_checkpoints = lambda args, step, bar, logs, state: means.append(logs["loss_mean"])
    trainer.fit(args, 0, 1)
    return gradients, means
