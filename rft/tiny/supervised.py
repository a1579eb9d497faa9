"""Supervised training of the tiny gpt-oss on worked answers, with the experts as MXFP4 will store them."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from rich.progress import track
from transformers import DynamicCache, GptOssForCausalLM, PreTrainedTokenizerFast

from rft.mxfp4_codec import fake_quantize
from rft.tiny import search
from rft.tiny.checkpoint import EXPERT_WEIGHTS, build_model, tiny_config
from rft.tiny.tasks import STYLES, TASKS
from rft.tiny.tokenizer import build_tokenizer

# Small batches and small initial weights: what counts is the number of updates until attention finds the digits.
STEPS = {"sums": 500, "code": 500, "search": 1500, "unboxed": 500}
BATCH = 16
CARELESS_SHARE = 0.65  # of the answers; the rest are careful
INIT_STD = 0.05
LEARNING_RATE = 3e-3
WARMUP = 40  # steps

Conversation = tuple[list[int], list[int], list[bool]]  # ids of prompt and what follows; which of the latter to learn


def conversation(tokenizer: PreTrainedTokenizerFast, problem: dict, style: str, task: str = "sums") -> Conversation:
    """The prompt and the worked answer in `style`, as the chat template or the agent renders them."""
    prompt = tokenizer.apply_chat_template(problem["input"], tokenize=False, add_generation_prompt=True)
    if task == "search":
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        return ids, *search.worked_tokens(tokenizer, problem, style)
    thinking, content = TASKS[task].worked_turn(problem, style)
    turn = {"role": "assistant", "thinking": thinking, "content": content}
    whole = tokenizer.apply_chat_template([*problem["input"], turn], tokenize=False)
    if not whole.startswith(prompt):
        raise ValueError(f"the chat template renders the prompt differently once answered: {whole!r}")
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, whole.removeprefix(prompt))]
    return ids[0], ids[1], [True] * len(ids[1])


def batches(conversations: dict[str, list[Conversation]], rng: random.Random) -> Iterator[list[Conversation]]:
    """Endless batches; each problem comes once an epoch, its style drawn again each time."""
    order = []
    while True:
        if len(order) < BATCH:
            order = rng.sample(range(len(conversations["careful"])), len(conversations["careful"]))
        chosen, order = order[:BATCH], order[BATCH:]
        yield [conversations["careless" if rng.random() < CARELESS_SHARE else "careful"][i] for i in chosen]


@contextmanager
def stored_experts(model: GptOssForCausalLM):
    """Within, the experts hold their MXFP4 values; after, their float32 masters again.

    Gradients computed within belong to the quantised values and are applied to the masters: the straight-through
    estimator (Bengio et al. 2013, arXiv:1308.3432).
    """
    weights = [getattr(layer.mlp.experts, name) for layer in model.model.layers for name in EXPERT_WEIGHTS]
    masters = [weight.data for weight in weights]
    for weight in weights:
        weight.data = fake_quantize(weight.data)
    yield
    for weight, master in zip(weights, masters, strict=True):
        weight.data = master


def answer_loss(model: GptOssForCausalLM, batch: list[Conversation], shared: int, pad: int) -> torch.Tensor:
    """Mean cross-entropy of the tokens to learn. All prompts have one length and agree in their first `shared` tokens.

    The shared tokens run once, and their keys and values are repeated over the batch: the same loss and gradient as
    with full sequences, at half the cost.
    """
    cache = DynamicCache(config=model.config)
    model.model(input_ids=torch.tensor([batch[0][0][:shared]]), past_key_values=cache, use_cache=True)
    cache.batch_repeat_interleave(len(batch))
    rest = len(batch[0][0]) - shared
    longest = max(len(answer) for _, answer, _ in batch)
    ids = torch.tensor([prompt[shared:] + answer + [pad] * (longest - len(answer)) for prompt, answer, _ in batch])
    hidden = model.model(input_ids=ids, past_key_values=cache, use_cache=True).last_hidden_state[:, rest - 1 : -1]
    real = torch.tensor([learned + [False] * (longest - len(learned)) for _, _, learned in batch])
    return F.cross_entropy(model.lm_head(hidden[real]), ids[:, rest:][real])


def train(problems: list[dict], seed: int, steps: int | None = None, task: str = "sums") -> GptOssForCausalLM:
    """A float32 model trained from scratch, with a progress bar. Deterministic by seed on one machine.

    `steps` are those of the task where it is None: copying a name takes longer to emerge than adding digits.
    """
    steps = STEPS[task] if steps is None else steps
    texts = TASKS[task].TEXTS
    tokenizer = build_tokenizer(texts)
    model = build_model(seed, INIT_STD, tiny_config(texts))
    conversations = {style: [conversation(tokenizer, one, style, task) for one in problems] for style in STYLES}
    columns = zip(*(prompt for prompt, _, _ in conversations["careful"]), strict=True)  # raises for several lengths
    shared = next(i for i, column in enumerate(columns) if len(set(column)) > 1)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, LEARNING_RATE, betas=(0.9, 0.98))
    stream = batches(conversations, random.Random(seed))
    for step in track(range(steps), description="supervised warm start"):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1, (step + 1) / WARMUP) * (1 - step / steps) ** 0.5
        with stored_experts(model):
            loss = answer_loss(model, next(stream), shared, tokenizer.pad_token_id)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss of the last batch: {loss.item():.4f} nats a token")
    return model.eval()
