"""A short training with the search agent and a real retriever: what was sampled, token by token, is what is trained."""

import os
from dataclasses import dataclass
from pathlib import Path

import direct
import pytest
import torch
from float32_truth import chosen, farthest, logits
from metric_table import metric_sources
from passages_server import retriever
from safetensors.torch import load_file
from tiny_search import tiny_search

from rft.record.names import TRAINING_FILE
from rft.record.readers import read_jsonl
from rft.record.samples import TRAINING, read_samples, sample_file
from rft.tiny.checkpoint import load_dequantized

pytestmark = pytest.mark.stack
PROMPTS, SAMPLES = 8, 4  # of the one step that is trained
LIMITS = {"RFT_AGENT_MAX_TURNS": "3", "RFT_AGENT_TURN_TOKENS": "24", "RFT_AGENT_OBSERVATION_TOKENS": "256"}
# Writes down what the engine sampled, apart from what the agent made of it.
RECORDER = """
import json
import os

from rft.agents.executor import SearchExecutor


class AgentExecutor(SearchExecutor):
    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine):
        turns = []

        class Watched:
            async def generate(self, tokens, params):
                output = await llm_engine.generate(tokens, params)
                (said,) = output.outputs
                log_probs = [found[token].logprob for found, token in zip(said.logprobs, said.token_ids, strict=True)]
                turns.append({"before": tokens, "sampled": list(said.token_ids), "log_probs": log_probs,
                              "seed": params.seed})
                return output

        response = await super().execute(prompt, label, sampling_params, max_length, hf_tokenizer, Watched())
        prompt_tokens = hf_tokenizer(prompt, add_special_tokens=False)["input_ids"]
        place = [prompt, sampling_params.extra_args["sample_index"]]
        with open(os.environ["CONVERSATIONS"], "a") as out:
            out.write(json.dumps(response | {"place": place, "engine": turns, "prompt_tokens": prompt_tokens}) + "\\n")
        return response
"""


@dataclass
class Run:
    """A training of one step: what its engine sampled, and what its trainer computed with."""

    path: Path
    checkpoint: Path
    conversations: list[dict]
    samples: list[dict[str, list]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same step twice, from the same start."""
    place = tmp_path_factory.mktemp("search")
    checkpoint, data = tiny_search(place)
    agent = place / "agent.py"
    agent.write_text(RECORDER)
    with retriever(place, data / "corpus.jsonl") as url:
        return [train(place / name, checkpoint, data / "train.jsonl", agent, url) for name in ("one", "again")]


def train(path: Path, checkpoint: Path, prompts: Path, agent: Path, url: str) -> Run:
    conversations = path.with_suffix(".conversations")
    before = dict(os.environ)
    # With any norm a step counts as a spike, whose bundle holds what the trainer computed with.
    os.environ.update(LIMITS | {"RETRIEVER_URL": url, "CONVERSATIONS": str(conversations), "SPIKE_GRAD_NORM": "-1"})
    try:
        options = {
            "--agent_func_path": agent,
            "--prompt_data": prompts,
            "--max_samples": PROMPTS,
            "--generate_max_len": 640,
            "--micro_train_batch_size": SAMPLES,
        }
        words = [str(word) for pair in options.items() for word in pair]
        direct.train(path, checkpoint, *words, "--full_determinism", "--mask_truncated")
    finally:
        os.environ.clear()
        os.environ.update(before)
    found = sorted(read_jsonl(conversations), key=lambda one: one["place"])
    return Run(path, checkpoint, found, trained_samples(path / "spikes/step_1_rank_0/batch.safetensors"))


def trained_samples(bundle: Path) -> list[dict[str, list]]:
    """Each sample of the step as the trainer had it, without padding: tokens, and for all but the first what belongs
    to them."""
    batch, found = load_file(bundle), []
    for number in {name.split(".")[0] for name in batch}:
        micro = {name.split(".", 1)[1]: tensor for name, tensor in batch.items() if name.split(".")[0] == number}
        for row, real in enumerate(micro["attention_mask"].bool()):
            columns = ("action_mask", "rollout_log_probs", "action_log_probs")
            one = {name: micro[name][row][real[1:]].tolist() for name in columns}
            found.append(one | {"tokens": micro["sequences"][row][real].tolist()})
    return found


def spelled(talk: dict) -> tuple[list[int], list[int], list[float]]:
    """Tokens of a conversation, which of them the engine sampled (1 or 0), and with what, from what the engine saw."""
    tokens, mask, log_probs = [], [], []
    for turn in talk["engine"]:
        written = turn["before"][len(tokens) :]  # the prompt, or what the environment wrote
        assert turn["before"][: len(tokens)] == tokens
        tokens += written + turn["sampled"]
        mask += [0] * len(written) + [1] * len(turn["sampled"])
        log_probs += [0.0] * len(written) + turn["log_probs"]
    return tokens, mask, log_probs


def test_the_trainer_replays_each_token_of_the_rollout_and_masks_what_was_not_sampled(runs):
    run = runs[0]
    assert len(run.conversations) == len(run.samples) == PROMPTS * SAMPLES
    by_tokens = {tuple(sample["tokens"]): sample for sample in run.samples}
    for talk in run.conversations:
        tokens, mask, log_probs = spelled(talk)
        assert tokens == talk["observation_tokens"] and tokens[: len(talk["prompt_tokens"])] == talk["prompt_tokens"]
        sample = by_tokens[tuple(tokens)]
        assert [int(kept) for kept in sample["action_mask"]] == [kept * (not talk["truncated"]) for kept in mask[1:]]
        assert sample["rollout_log_probs"] == pytest.approx(log_probs[1:], abs=1e-6)
    searches = [talk["extra_logs"]["searches"] for talk in run.conversations]
    assert sum(searches) >= PROMPTS and len({len(talk["engine"]) for talk in run.conversations}) > 1


def test_multi_turn_mismatch_is_as_small_as_that_of_one_turn(runs):
    """In first turns and in later ones engine and trainer are as far from float32 as bfloat16 leads a computation."""
    models = [load_dequantized(runs[0].checkpoint, dtype) for dtype in (torch.float32, torch.bfloat16)]
    off = {"first": [], "later": []}  # of bf16 in transformers, of the engine, of the trainer; each (tokens,)
    for sample in runs[0].samples:
        tokens = sample["tokens"]
        exact, rounded = (chosen(logits(model, tokens[:1], tokens[1:]), tokens[1:]) for model in models)
        seen = [rounded, *(torch.tensor(sample[name]) for name in ("rollout_log_probs", "action_log_probs"))]
        errors = torch.stack([(each - exact).abs() for each in seen])
        sampled = torch.tensor(sample["action_mask"]).bool()
        turn = (sampled & ~torch.cat([torch.zeros(1, dtype=torch.bool), sampled[:-1]])).cumsum(0)
        off["first"].append(errors[:, sampled & (turn == 1)])
        off["later"].append(errors[:, sampled & (turn > 1)])
    for name, parts in off.items():
        bf16, engine, trainer = torch.cat(parts, 1)
        mean = ", ".join(f"{each.mean():.5f}" for each in (bf16, engine, trainer))
        print(f"{name} turns, {len(bf16)} tokens: mean |log-ratio| to float32 of bf16, engine, trainer: {mean}")
        assert len(bf16) > 30
        assert max(engine.mean(), trainer.mean()) < farthest(bf16)


def test_turns_have_seeds_of_their_own_and_a_rerun_draws_the_same(runs):
    one, again = ([(talk["place"], talk["engine"]) for talk in run.conversations] for run in runs)
    seeds = [turn["seed"] for _, turns in one for turn in turns]
    assert len(set(seeds)) == len(seeds) and None not in seeds
    assert one == again


def test_metrics_know_the_turns(runs):
    (record,) = read_jsonl(runs[0].path / TRAINING_FILE)
    talks = runs[0].conversations
    for name in ("turns", "searches", "answered", "action_tokens", "observation_tokens", "forced_answer"):
        wanted = sum(talk["extra_logs"][name] for talk in talks) / len(talks)
        assert record[name] == pytest.approx(wanted, rel=1e-4), name
    assert record["response_length"] == pytest.approx(record["action_tokens"], rel=1e-4)
    assert record.keys() <= metric_sources().keys()


def test_sample_files_show_the_turns(runs):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(runs[0].checkpoint)
    rows = read_samples(sample_file(runs[0].path / "samples", TRAINING, 1))
    talks = {(row["prompt"], row["response"]): row["turns"] for row in rows}
    for talk in runs[0].conversations:
        said = [tokenizer.decode(turn["sampled"], skip_special_tokens=False) for turn in talk["engine"]]
        response = tokenizer.decode(talk["observation_tokens"][len(talk["prompt_tokens"]) :], skip_special_tokens=False)
        turns = talks[talk["prompt"], response]
        assert [turn["text"] for turn in turns if turn["by"] == "model"] == said
        assert [turn["by"] for turn in turns] == ["model", "environment"] * (len(said) - 1) + ["model"]
