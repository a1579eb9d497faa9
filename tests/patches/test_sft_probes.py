"""Supervised training: what the patched dataset gives the trainer, and what is refused before a model is loaded."""

import json
import types

import pytest
import torch
from ranks import run_module, run_ranks
from safetensors.torch import load_file
from sft_checks import ASK, LORA, ROWS, STEP, TURN, by_hand, dataset, float32_actor, run_args

BUDGETS = (120, 180, 1000)  # of rows of 61, 111, 57 and 67 tokens: 3, 2 and 1 micro-batches on one rank
ROW = {"input": [ASK, TURN, {"role": "user", "content": "4 + 5"}, {**TURN, "thinking": "9", "content": "\\boxed{9}"}]}
LEARNED = [
    f"<|channel|>analysis<|message|>{thinking}<|end|><|start|>assistant<|channel|>final<|message|>{content}<|return|>"
    for thinking, content in (("2+4=6, 1+3=4", "\\boxed{46}"), ("9", "\\boxed{9}"))
]


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


def test_a_supervised_step_is_one_mean_whatever_its_split(checkpoint, monkeypatch):
    """The trainer's own loop over four rows, against the loss written by hand, each row alone and without padding."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")  # what upstream asks for, where there is none
    actor, trained = float32_actor(checkpoint)
    made, _ = dataset(checkpoint, ROWS, output_key="output")
    mean, wanted = wanted_step(actor, made, trained)
    for size in (1, 2, 4):
        (found,), means = steps(actor, made, trained, size)
        print(f"micro-batches of {size}: distance of the gradient {distance(found, wanted):.1e}, loss {means[0]}")
        assert distance(found, wanted) < 1e-5  # float32
        assert means == pytest.approx([mean], rel=1e-5)


def wanted_step(actor, made, trained) -> tuple[float, torch.Tensor]:
    """The mean loss of a step's learned tokens and its gradient, from each row by hand."""
    loss, tokens = by_hand(actor, made, range(STEP))
    gradient = torch.autograd.grad(loss / tokens, trained)
    return (loss / tokens).item(), torch.cat([each.flatten() for each in gradient])


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative to the wanted one's norm."""
    return ((found - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_supervised_step_is_one_mean_whatever_its_packing(checkpoint, budget, ranks):
    """The trainer's own loop on each rank's micro-batches by tokens, against the loss written by hand."""
    actor, trained = float32_actor(checkpoint)
    made, _ = dataset(checkpoint, ROWS, output_key="output")
    mean, wanted = wanted_step(actor, made, trained)
    gradients, means, seen = [], [], []
    for rank in range(ranks):
        found, losses = packed_steps(actor, made, trained, budget, rank, ranks, seen)
        assert len(found) == len(losses) == 1, "no whole optimizer step, or more than one"
        gradients, means = gradients + found, means + losses
    assert max(seen) <= budget and sum(seen) == sum(made[place][0].numel() for place in range(STEP))
    print(f"{budget} tokens, {ranks} ranks: micro-batches of {seen}")
    assert distance(sum(gradients) / ranks, wanted) < 1e-5  # DeepSpeed takes the mean of ranks; float32
    assert sum(means) / ranks == pytest.approx(mean, rel=1e-5)


def test_a_packed_step_adds_up_on_one_rank_and_on_two(checkpoint, tmp_path):
    """By DeepSpeed in ranks of their own, also held-out rows that are no multiple of the ranks."""
    actor, trained = float32_actor(checkpoint)
    made, _ = dataset(checkpoint, ROWS, output_key="output")
    mean, wanted = wanted_step(actor, made, trained)
    loss, tokens = by_hand(actor, made, range(len(ROWS)))
    for ranks in (1, 2):
        run_ranks("sft_checks.py", ranks, checkpoint, tmp_path / f"{ranks}.safetensors", 0, *BUDGETS)
        seen = json.loads((tmp_path / f"{ranks}.json").read_text())
        gradients = load_file(tmp_path / f"{ranks}.safetensors")
        distances = {budget: distance(gradient, wanted) for budget, gradient in gradients.items()}
        print(
            f"{ranks} ranks: distances of the gradient {distances}, rows {[found['rows'] for found in seen.values()]}"
        )
        assert max(distances.values()) < 1e-5  # float32
        for found in seen.values():
            assert found["steps"] == 1 and {len(rows) for rows in found["rows"]} == {len(found["rows"][0])}
            assert found["loss"] == pytest.approx(mean, rel=1e-5)
            assert found["held_out"] == pytest.approx((loss / tokens).item(), rel=1e-5)


def test_the_resident_actor_learns_the_same_tokens(checkpoint, monkeypatch):
    """Its loss is that of transformers' model, both in bf16; its options are the trainer's."""
    from openrlhf.models import Actor

    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    assert "--shard_experts" in run_module("openrlhf.cli.train_sft", "--help").stdout
    lora = LORA | {"attn_implementation": "eager", "head_dtype": "float32"}
    made, _ = dataset(checkpoint, ROWS, output_key="output")
    means = {}
    for kind in ("resident", "eager"):
        actor = Actor(str(checkpoint), actor=kind, **lora)
        trained = [parameter for parameter in actor.model.parameters() if parameter.requires_grad]
        (gradient,), means[kind] = steps(actor, made, trained, 2)
        assert gradient.isfinite().all() and gradient.any()
    assert means["resident"] == pytest.approx(means["eager"], rel=2**-6)  # of two layers, two roundings each


def steps(actor, made, trained, size: int) -> tuple[list[torch.Tensor], list[float]]:
    """The gradient and the mean loss of each optimizer step of OpenRLHF's trainer, in micro-batches of `size`."""
    from torch.utils.data import DataLoader

    each, seen = STEP // size, []

    def ends() -> bool:
        seen.append(1)
        return len(seen) % each == 0

    loader = DataLoader(made, batch_size=size, collate_fn=made.collate_fn, drop_last=True)
    return trainer_steps(actor, trained, loader, run_args(0), each, each, ends)


def packed_steps(actor, made, trained, budget: int, rank: int, ranks: int, seen: list[int]):
    """The same of one rank's micro-batches of at most `budget` tokens, each of which is noted in `seen`."""
    from openrlhf.utils.distributed_sampler import DistributedSampler
    from torch.utils.data import DataLoader

    boundaries = []

    def ends() -> bool:
        return boundaries[-1:] == [True]

    def note(_, inputs, options):
        seen.append(int(options["attention_mask"].sum()))

    actor.model.set_gradient_accumulation_boundary = boundaries.append
    sampler = DistributedSampler(made, ranks, rank, shuffle=False, drop_last=True)
    loader = DataLoader(made, batch_size=1, sampler=sampler, collate_fn=made.collate_fn, drop_last=True)
    watch = actor.register_forward_pre_hook(note, with_kwargs=True)
    try:
        return trainer_steps(actor, trained, loader, run_args(budget), STEP // ranks, 1, ends)
    finally:
        watch.remove()


def trainer_steps(actor, trained, loader, args, accumulated: int, divisor: int, ends) -> tuple[list, list[float]]:
    """OpenRLHF's trainer with DeepSpeed's part: it divides a loss by `divisor`, and steps where `ends` says so."""
    from openrlhf.trainer.sft_trainer import SFTTrainer

    gradients, means = [], []

    def optimizer_step(*_):
        if ends():
            gradients.append(torch.cat([parameter.grad.flatten() for parameter in trained]))
            for parameter in trained:
                parameter.grad = None

    strategy = types.SimpleNamespace(
        args=args, accumulated_gradient=accumulated, world_size=1, ring_attn_group=None, is_rank_0=lambda: False,
        all_reduce=lambda value, op="mean": value, optimizer_step=optimizer_step,
        backward=lambda loss, model, optimizer: (loss / divisor).backward(), get_grad_norm=lambda model: 0.0,
    )  # fmt: skip
    scheduler = types.SimpleNamespace(get_last_lr=lambda: [0.0])
    trainer = SFTTrainer(actor, strategy, None, loader, None, scheduler, batch_size=STEP, max_epochs=1)
    trainer.save_logs_and_checkpoints = lambda args, step, bar, logs, state: means.append(logs["loss_mean"])
    trainer.fit(args, 0, 1)
    return gradients, means
