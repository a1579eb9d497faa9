"""The loop of a search agent: tokens, ranges, budget, seeds and faults of a conversation, turn by turn."""

import pytest
from scripted_agent import FOUND, TOKENIZER, ids, log_prob, params, request_output, talk

from rft.agents import tags
from rft.agents.actions import Observation
from rft.agents.conversation import ConversationError
from rft.agents.settings import Settings
from rft.hooks.rollout_seeds import of_turn
from rft.retriever.client import Passage

ROOMY = Settings(max_turns=4, turn_tokens=60, observation_tokens=500)
SEARCH, ANSWER = "<search>alder leaf</search>", "<answer>teeth</answer>"
PROMPT = ids("<|start|>user<|message|>?<|end|>")


def text_of(tokens: list[int]) -> str:
    return TOKENIZER.decode(tokens, skip_special_tokens=False)


def test_search_then_answer_token_by_token():
    done, asked = talk([f"I look. {SEARCH}", f"So: {ANSWER}"], ROOMY)
    first, between, second = ids(f"I look. {SEARCH}"), done.turns[0].observation_tokens, ids(f"So: {ANSWER}")
    assert done.tokens == PROMPT + first + between + second
    at = len(PROMPT)
    assert done.action_ranges == [(at, at + len(first)), (at + len(first) + len(between), len(done.tokens))]
    assert done.log_probs == (
        [0.0] * at
        + [log_prob(0, i) for i in range(len(first))]
        + [0.0] * len(between)
        + [log_prob(1, i) for i in range(len(second))]
    )
    assert "The alder's leaf has teeth." in text_of(between)
    assert (done.answer, done.truncated, done.told_to_answer) == ("teeth", False, False)
    assert asked.queries == ["alder leaf"]
    assert [(turn.kind, turn.query, turn.finish) for turn in done.turns] == [
        ("search", "alder leaf", "stop"),
        ("answer", None, "stop"),
    ]
    assert done.turns[0].search_seconds >= 0 and done.turns[1].search_seconds is None
    assert [tokens for tokens, _ in asked.calls] == [PROMPT, done.tokens[: done.action_ranges[1][0]]]


def test_calls_of_harmony_token_by_token():
    call = '<|channel|>commentary to=functions.search<|message|>{"query": "alder leaf"}<|call|>'
    final = "<|channel|>final<|message|>teeth<|return|>"
    done, asked = talk([call, final], Settings("harmony", turn_tokens=100, observation_tokens=500))
    between = done.turns[0].observation_tokens
    assert done.tokens == PROMPT + ids(call) + between + ids(final)
    assert text_of(between).startswith("<|start|>functions.search to=assistant<|channel|>commentary<|message|>")
    assert text_of(between).endswith("<|end|><|start|>assistant")
    assert (asked.queries, done.answer, done.truncated) == (["alder leaf"], "teeth", False)


def test_an_answer_ends_it_and_nothing_is_written_behind_it():
    done, asked = talk([ANSWER], ROOMY)
    assert done.tokens == PROMPT + ids(ANSWER)
    assert len(asked.calls) == 1 and done.turns[0].observation_tokens == []


@pytest.mark.parametrize("behind", ["\n\n", "\n", ""])
def test_a_stop_that_ends_inside_a_token_drifts_nothing(behind):
    """`>\\n\\n` is one token: the engine's text ends in `>`, its tokens do not."""
    said = f"{SEARCH}{behind}"
    if behind:
        assert ids(said)[-1] != ids(SEARCH)[-1] and len(ids(said)) == len(ids(SEARCH))
    done, asked = talk([said, ANSWER], ROOMY)
    assert done.turns[0].tokens == ids(said) and asked.queries == ["alder leaf"]
    start, end = done.action_ranges[0]
    assert done.tokens[start:end] == ids(said)
    assert text_of(done.tokens[start:]).startswith(said)
    assert asked.calls[1][0] == done.tokens[: done.action_ranges[1][0]]


def test_what_was_sampled_is_never_tokenised_again():
    """The policy may spell a tag in other tokens than a tokenizer would."""
    spelled = [token for character in SEARCH for token in ids(character)]
    assert spelled != ids(SEARCH) and text_of(spelled) == SEARCH
    done, asked = talk([spelled, ANSWER], ROOMY)
    assert done.turns[0].tokens == spelled == done.tokens[slice(*done.action_ranges[0])]
    assert asked.calls[1][0][len(PROMPT) : len(PROMPT) + len(spelled)] == spelled


def test_stops_and_limit_hold_from_the_first_turn_on():
    done, asked = talk([SEARCH, ANSWER], ROOMY)
    for _, given in asked.calls:
        assert given.max_tokens == 60 and given.min_tokens == 1
        assert given.stop == tags.stops(False)["stop"] and given.logprobs == 0
    assert done.answer == "teeth"


def test_the_samples_parameters_are_left_as_they_are_and_its_own_stops_stay():
    given = params(stop=["halt"], stop_token_ids=[3], extra_args={"sample_index": 2})
    before = repr(given)
    from rft.agents.conversation import turn_params

    first = turn_params(given, 0, 30, {"stop": ["</search>"], "stop_token_ids": [9]})
    second = turn_params(given, 1, 20, {"stop": ["</answer>"]})
    assert (first.stop, first.stop_token_ids, first.max_tokens) == (["halt", "</search>"], [3, 9], 30)
    assert (second.stop, second.stop_token_ids, second.max_tokens) == (["halt", "</answer>"], [3], 20)
    assert first.extra_args == second.extra_args == {"sample_index": 2}
    assert repr(given) == before and given.all_stop_token_ids == {3}


@pytest.mark.parametrize("least, limit, wanted", [(0, 60, 0), (1, 60, 1), (60, 60, 60), (90, 60, 60)])
def test_min_tokens_is_at_most_the_turns_limit(least, limit, wanted):
    from rft.agents.conversation import turn_params

    assert turn_params(params(min_tokens=least), 0, limit, {}).min_tokens == wanted


def test_a_stop_within_min_tokens_is_passed_and_the_whole_turn_is_kept():
    said = f"{SEARCH} and more that vLLM samples on"
    done, asked = talk([said, ANSWER], ROOMY, min_tokens=len(ids(SEARCH)) + 4)
    assert len(done.turns[0].tokens) == len(ids(SEARCH)) + 5
    assert asked.queries == ["alder leaf"]


def test_every_turn_has_a_seed_of_its_own_and_the_first_the_samples():
    script = [SEARCH, "neither", SEARCH, ANSWER]
    seeds = [given.seed for _, given in talk(script, ROOMY)[1].calls]
    assert seeds == [of_turn(params(), 77, turn).seed for turn in range(4)]
    assert len(set(seeds)) == 4 and seeds[0] == 77
    assert seeds == [given.seed for _, given in talk(script, ROOMY)[1].calls]
    assert not set(seeds) & {given.seed for _, given in talk(script, ROOMY, seed=78)[1].calls}
    assert [given.seed for _, given in talk(script, ROOMY, seed=None)[1].calls] == [None] * 4


def test_an_invalid_turn_gets_a_sentence_back_and_nothing_is_searched():
    done, asked = talk(["I do not know.", ANSWER], ROOMY)
    assert done.turns[0].kind == "invalid" and asked.queries == [] and done.turns[0].search_seconds is None
    sentence = tags.invalid(tags.parse("I do not know.").text)
    assert sentence in text_of(done.turns[0].observation_tokens)
    assert "<information>" not in text_of(done.turns[0].observation_tokens)
    assert done.answer == "teeth"


def test_the_last_turn_is_told_to_answer_and_searches_no_more():
    done, asked = talk([SEARCH] * 4, ROOMY)
    assert len(done.turns) == 4 and asked.queries == ["alder leaf"] * 3
    told = [tags.LAST_TURN in text_of(turn.observation_tokens) for turn in done.turns]
    assert told == [False, False, True, False]
    assert done.told_to_answer and done.answer is None and done.turns[3].query is None
    assert not done.truncated, "it had its turns and its tokens"
    assert asked.calls[3][1].stop == tags.stops(True)["stop"] or asked.calls[3][1].stop is not None


def test_an_invalid_turn_before_the_last_gets_both_sentences():
    done, _ = talk(["hm"] * 2, Settings(max_turns=2, turn_tokens=60, observation_tokens=500))
    said = text_of(done.turns[0].observation_tokens)
    assert tags.LAST_TURN in said and tags.invalid(tags.parse("hm").text) in said


def test_one_turn_answers_without_being_told():
    done, asked = talk([SEARCH], Settings(max_turns=1))
    assert asked.queries == [] and not done.told_to_answer and done.tokens == PROMPT + ids(SEARCH)


LONG = "x" * 500


@pytest.mark.parametrize(
    "script, turns, truncated, answer",
    [
        ([LONG] * 4, 4, True, None),  # every turn at its limit, the last too
        ([LONG, ANSWER], 2, False, "teeth"),
        ([SEARCH, SEARCH, SEARCH, "I cannot say."], 4, False, None),
        ([SEARCH, SEARCH, SEARCH, LONG], 4, True, None),
    ],
)
def test_truncated_says_whether_tokens_were_lacking(script, turns, truncated, answer):
    done, _ = talk(script, ROOMY)
    assert (len(done.turns), done.truncated, done.answer) == (turns, truncated, answer)
    assert all((turn.finish == "length") == (len(turn.tokens) == 60) for turn in done.turns)


def test_an_answer_that_fills_its_turn_to_the_last_token_is_not_truncated():
    exact = Settings(turn_tokens=len(ids(ANSWER)), observation_tokens=500)
    done, _ = talk([ANSWER], exact)
    assert (done.answer, done.truncated, len(done.tokens)) == ("teeth", False, len(PROMPT) + len(ids(ANSWER)))


NEEDED = 2 * ROOMY.turn_tokens + ROOMY.observation_tokens  # for a turn that searches, its observation, a turn to answer


@pytest.mark.parametrize("spare, searches", [(0, 1), (-1, 0), (300, 1), (600, 2), (1100, 3)])
def test_a_turn_searches_only_where_an_observation_and_a_last_turn_fit(spare, searches):
    full = [Passage("1", "Long", "word " * 2000, None)]
    done, asked = talk([LONG.replace("x", "<search>q</search>")] * 4, ROOMY, full, len(PROMPT) + NEEDED + spare)
    assert len(asked.queries) == searches
    assert len(done.tokens) <= len(PROMPT) + NEEDED + spare
    assert done.answer is None and done.told_to_answer == bool(searches)
    assert done.truncated == (searches < 3), "with fewer turns than it may have, tokens were lacking"


def test_a_budget_for_one_turn_more_makes_it_the_last_and_gives_it_all_its_tokens():
    done, asked = talk([SEARCH, LONG], ROOMY, max_length=len(PROMPT) + NEEDED)
    assert len(done.turns) == 2 and done.told_to_answer and done.truncated
    assert tags.LAST_TURN in text_of(done.turns[0].observation_tokens)
    assert asked.calls[1][1].max_tokens == 60 and done.turns[1].finish == "length"


def test_a_prompt_that_leaves_one_token_has_one_turn_of_one_token():
    done, asked = talk([LONG], ROOMY, max_length=len(PROMPT) + 1)
    assert asked.calls[0][1].max_tokens == 1 and asked.calls[0][1].min_tokens == 1
    assert len(done.tokens) == len(PROMPT) + 1 and done.truncated and not done.told_to_answer


@pytest.mark.parametrize("max_length", [len(PROMPT), len(PROMPT) - 1, 1])
def test_a_prompt_that_fills_all_is_refused_and_nothing_is_sampled(max_length):
    with pytest.raises(ValueError, match=rf"(?s)found:  {len(PROMPT)} tokens of {max_length}\n.*--prompt_max_len"):
        talk([], ROOMY, max_length=max_length)


def test_generate_max_len_bounds_a_turn_too():
    done, asked = talk([LONG, ANSWER], ROOMY, max_tokens=24)
    assert [given.max_tokens for _, given in asked.calls] == [24, 24]
    assert len(done.turns[0].tokens) == 24


def test_an_observation_is_cut_to_its_limit_and_that_is_recorded():
    full = [Passage("1", "Long", "word " * 2000, None)]
    done, _ = talk([SEARCH, ANSWER], ROOMY, full)
    assert 400 < len(done.turns[0].observation_tokens) <= 500 and done.turns[0].information_cut
    assert text_of(done.turns[0].observation_tokens).rstrip().endswith("</information>")
    assert not talk([SEARCH, ANSWER], ROOMY, FOUND)[0].turns[0].information_cut


def test_a_protocol_that_writes_too_much_is_an_error(monkeypatch):
    monkeypatch.setattr(tags, "observation", lambda *_, **__: Observation([1] * 501, False))
    with pytest.raises(ConversationError, match=r"turn 1, writing the observation: .*wrote 501 tokens; wanted 500"):
        talk([SEARCH, ANSWER], ROOMY)


def test_without_log_probabilities_there_are_none():
    done, _ = talk([SEARCH, ANSWER], ROOMY, logprobs=None)
    assert done.log_probs is None and done.answer == "teeth"


BROKEN = {
    "no output": (None, "returned 0 completions"),
    "aborted": (request_output([5], "abort", 1, params()), "ended the turn with 'abort'"),
    "not finished": (request_output([5], None, 1, params()), "ended the turn with None"),
    "no tokens": (request_output([], "stop", 1, params()), "returned 0 tokens; wanted 1 to 60"),
    "too many": (request_output([5] * 61, "stop", 1, params()), "returned 61 tokens; wanted 1 to 60"),
    "no log-probs": (request_output([5], "stop", 1, params(logprobs=None)), "0 log-probabilities for 1 tokens"),
    "one too few": (
        request_output(
            [5, 6], "stop", 1, params(), logprobs=request_output([5], "stop", 1, params()).outputs[0].logprobs
        ),
        "1 log-probabilities for 2 tokens",
    ),
    "of another token": (
        request_output([5], "stop", 1, params(), logprobs=request_output([9], "stop", 1, params()).outputs[0].logprobs),
        "no log-probability of the token that it sampled at 0",
    ),
    "raised": (ConnectionResetError("the core is gone"), "ConnectionResetError: the core is gone"),
}


@pytest.mark.parametrize("said, text", BROKEN.values(), ids=BROKEN)
def test_a_turn_that_the_engine_did_not_sample_is_an_error_with_its_number(said, text):
    with pytest.raises(ConversationError, match=r"^turn 2, sampling: ") as caught:
        talk([SEARCH, said], ROOMY)
    assert text in str(caught.value)


def test_a_search_that_fails_is_an_error_and_never_empty_information():
    with pytest.raises(ConversationError, match=r"^turn 1, searching: OSError: unplugged$") as caught:
        talk([SEARCH, ANSWER], ROOMY, OSError("unplugged"))
    assert isinstance(caught.value.__cause__, OSError)
