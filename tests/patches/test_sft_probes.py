"""Supervised training: what the patched dataset gives the trainer, and what is refused before a model is loaded."""

import types

import pytest
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


@pytest.mark.parametrize("options", [[], ["--attn_implementation", "eager", "--packing_samples"]])
def test_supervised_training_of_gpt_oss_without_sinks_is_refused(checkpoint, options):
    """Upstream's default is FlashAttention 2, and packing asks for it."""
    done = run_module("openrlhf.cli.train_sft", "--pretrain", checkpoint, *options)
    assert done.returncode == 1, done.stdout
    assert "gpt-oss cannot be trained like this" in done.stdout and "Traceback" not in done.stdout
