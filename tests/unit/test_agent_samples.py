"""What the search agent logs, on its way through OpenRLHF's sample generator into files, metrics and their pages."""

import gzip
import json
import re
import types
from pathlib import Path

import pytest
from layouts import samples_generator

from rft.agents.conversation import Conversation, Turn
from rft.agents.executor import logs
from rft.hooks.numeric_logs import numeric_only, text_only
from rft.hooks.sample_metrics import sample_metrics
from rft.hooks.samples import write_samples
from rft.record.samples import sample_files
from rft.runs.samples.read import groups_of

LIMITS = {"prompt_max_len": 8, "max_new_tokens": 64}
LABEL = json.dumps({"kind": "search", "answers": ["Rome"]})


def talk(*turns: Turn, answer: str | None) -> Conversation:
    """A conversation of these turns behind a prompt of three tokens."""
    made = Conversation([1, 2, 3], answer=answer, turns=list(turns), truncated=answer is None)
    for turn in turns:
        made.action_ranges.append((len(made.tokens), len(made.tokens) + len(turn.tokens)))
        made.tokens += turn.tokens + turn.observation_tokens
    return made


def experience(conversation: Conversation, correct: float):
    """The sample that OpenRLHF makes of what the executor returns."""

    made = object.__new__(samples_generator())
    made.args = types.SimpleNamespace(mask_truncated=True, agent_func_path="agents/agent_func_search.py")
    response = {
        "prompt": "p", "label": LABEL, "reward": correct, "scores": correct, "rollout_log_probs": None,
        "observation_tokens": conversation.tokens, "action_ranges": conversation.action_ranges,
        "truncated": conversation.truncated, "extra_logs": logs(conversation) | {"correctness": correct},
    }  # fmt: skip
    return made._process_response_into_experience(response, **LIMITS)


def samples() -> list:
    searched = Turn("search", [4, 5], [6, 7, 8], "q", 0.5, 0.125, information_cut=True)
    wrong = Turn("invalid", [9], [10, 11], seconds=0.25)
    answered = Turn("answer", [12, 13, 14], seconds=0.75)
    return [
        experience(talk(searched, wrong, answered, answer="Rome"), 1.0),
        experience(talk(Turn("invalid", [4], seconds=0.5, finish="length"), answer=None), 0.0),
    ]


def test_conversations_of_any_kind_make_one_batch():
    """The same numbers in every sample, or OpenRLHF's batches fall apart."""
    made = samples()
    assert made[0].info.keys() == made[1].info.keys()
    from openrlhf.trainer.ppo_utils.experience_maker import Experience

    whole = Experience.concat_experiences(made, 0)
    assert all(len(value) == 2 for value in whole.info.values())
    assert whole.info["response_length"].tolist() == [6, 1] and whole.info["truncated"].tolist() == [False, True]
    assert whole.action_mask.tolist() == [[0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 1, 1, 1], [0, 0, 1] + [0] * 10]


def test_numbers_of_conversations():
    found = sample_metrics(samples(), 2)
    assert found["turn_tokens"] == 7 / 4 and found["turn_seconds"] == 0.5
    assert found["invalid_action_share"] == 0.5 and found["information_cut_share"] == 1
    assert found["search_latency_mean"] == found["search_latency_p95"] == 0.125
    assert found["correctness_searches_0"] == 0 and found["correctness_searches_1"] == 1


def test_every_number_of_a_conversation_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    documented = {
        name for line in page.splitlines() if line[:3] == "| `" for name in re.findall(r"`(\w+)`", line.split(" | ")[0])
    }
    found = sample_metrics(samples(), 2) | numeric_only(logs(talk(Turn("answer", [4]), answer="x")))
    assert found.keys() - documented == set()


def test_a_conversation_can_be_read_again(tmp_path, monkeypatch):
    monkeypatch.setenv("SAMPLES_LOG_DIR", str(tmp_path))
    letters = types.SimpleNamespace(decode=lambda ids, skip_special_tokens: "".join(chr(96 + int(i)) for i in ids))
    write_samples(types.SimpleNamespace(samples_every=1, samples_keep_gb=1.0), 1, samples(), letters)
    (file,) = sample_files(tmp_path)
    ((first, second),) = groups_of(file, pytest.fail)
    facts = first.facts()
    assert [(turn["by"], turn["text"], turn["tokens"], turn["seconds"]) for turn in facts["turns"]] == [
        ("model", "de", 2, 0.5), ("environment", "fgh", 3, None), ("model", "i", 1, 0.25),
        ("environment", "jk", 2, None), ("model", "lmn", 3, 0.75),
    ]  # fmt: skip
    assert (facts["answer"], facts["label"], facts["tokens"], facts["searches"], facts["cut"]) == (
        "Rome",
        "Rome",
        6,
        1,
        False,
    )
    assert (second.facts()["answer"], second.facts()["cut"]) == (None, True)
    rows = [json.loads(line) for line in gzip.decompress(file.path.read_bytes()).splitlines()]
    texts = text_only(logs(talk(Turn("answer", [4]), answer="x")))
    assert texts.keys() <= rows[0].keys() and rows[0]["extraction"] == "answer" and rows[1]["extraction"] == "none"
