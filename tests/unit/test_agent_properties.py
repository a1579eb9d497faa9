"""Random conversations: what holds for every one of them."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_agent import TOKENIZER, ids, log_prob, talk

from rft.agents.settings import PROTOCOLS, Settings
from rft.retriever.client import Passage

PIECES = ["<search>", "</search>", "<answer>", "</answer>", "<information>", "</information>", "q", " ", "\n\n", "Ünï"]
PIECES += ["<|return|>", "<|end|>", "<|call|>", "<|start|>", "<|message|>", "<|channel|>final", "x" * 30]
CALL = '<|channel|>commentary to=functions.search<|message|>{"query":"q"}<|call|>'
FINAL = "<|channel|>final<|message|>a"
WHOLE = ["<search>alder</search>\n\n", "<answer>teeth</answer>", "<search></search>", "no", CALL, FINAL]
WHOLE.append(f"{FINAL}<|return|>")
TURN = st.one_of(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join).map(ids),
    st.sampled_from(WHOLE).map(ids),
    st.lists(st.integers(0, len(TOKENIZER) - 1), min_size=1, max_size=50),
)
PASSAGES = st.lists(
    st.builds(Passage, st.just("1"), st.text(max_size=20), st.text(max_size=300), st.none() | st.floats(0, 1)),
    max_size=3,
)
LIMITS = st.builds(
    Settings,
    protocol=st.sampled_from(PROTOCOLS),
    max_turns=st.integers(1, 5),
    turn_tokens=st.integers(1, 90),
    observation_tokens=st.integers(420, 600),
)


@settings(max_examples=200, deadline=None)
@given(
    script=st.lists(TURN, min_size=5, max_size=5),
    found=PASSAGES,
    limits=LIMITS,
    prompt=st.lists(st.integers(0, len(TOKENIZER) - 1), min_size=1, max_size=40),
    room=st.integers(1, 3000),
    least=st.integers(0, 60),
    given_log_probs=st.sampled_from([None, 0, 1]),
)
def test_what_was_sampled_is_what_the_ranges_say(script, found, limits, prompt, room, least, given_log_probs):
    done, asked = talk(
        script, limits, found, len(prompt) + room, prompt, min_tokens=least, max_tokens=400, logprobs=given_log_probs
    )
    ranges = done.action_ranges
    assert done.tokens[: len(prompt)] == prompt and ranges[0][0] == len(prompt)
    assert all(start < end for start, end in ranges)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))
    assert len(ranges) == len(done.turns) == len(asked.calls) <= limits.max_turns
    assert len(done.tokens) <= len(prompt) + room

    # Each token once, in order: sampled ones in the ranges, the environment's between them.
    rebuilt = list(prompt)
    for turn, (start, end), (before, given_params), said in zip(done.turns, ranges, asked.calls, script, strict=False):
        assert before == rebuilt == done.tokens[:start]
        assert done.tokens[start:end] == turn.tokens == said[: len(turn.tokens)]
        assert given_params.min_tokens <= given_params.max_tokens and len(turn.tokens) <= given_params.max_tokens
        assert len(turn.observation_tokens) <= limits.observation_tokens
        rebuilt += turn.tokens + turn.observation_tokens
    assert rebuilt == done.tokens and done.turns[-1].observation_tokens == []

    if given_log_probs is None:
        assert done.log_probs is None
    else:
        wanted = [0.0] * len(done.tokens)
        for number, (start, end) in enumerate(ranges):
            wanted[start:end] = [log_prob(number, place) for place in range(end - start)]
        assert done.log_probs == wanted

    searched = [turn for turn in done.turns if turn.search_seconds is not None]
    assert asked.queries == [turn.query for turn in searched] and all(turn.kind == "search" for turn in searched)
    assert (done.answer is not None) == (done.turns[-1].kind == "answer")
    assert all(turn.kind != "answer" for turn in done.turns[:-1])
    assert not (done.truncated and done.answer is not None)
    if done.told_to_answer:
        assert asked.calls[-1][1].max_tokens == limits.turn_tokens
    # Nothing cuts a conversation short but an answer, the number of turns and the tokens.
    assert done.answer is not None or len(done.turns) == limits.max_turns or done.truncated
