"""The two protocols of the search agent: what turns ask for, what is written back, and that nothing gets out of it."""

import json
import random
import re

import pytest
from agent_texts import ANALYSIS, CALL, HOSTILE, NEXT, NO_SUCH, TOKENIZERS
from hypothesis import given, settings
from hypothesis import strategies as st

from rft.agents import harmony, observations, tags
from rft.agents.actions import Action
from rft.retriever.client import Passage
from rft.runs.preflight.harmony import load_encoding


@pytest.mark.parametrize(
    ("text", "kind", "content"),
    [
        ("<search>who</search>", "search", "who"),
        ("<search> who </search>\n", "search", "who"),  # the stop ended inside a token
        (f"{ANALYSIS}hm <search>a</search>", "search", "a"),
        ("<search>a<search>b</search>", "search", "b"),
        ("<answer>Paris</answer>", "answer", "Paris"),
        ("<answer>Paris<answer>London</answer>", "answer", "London"),
        ("<answer></answer>", "answer", ""),
        (f"{ANALYSIS}so{NEXT}<|channel|>final<|message|><answer>1 < 2</answer>", "answer", "1 < 2"),
        ("<search>a</search><answer>b</answer>", "search", "a"),
        ("<search></search>", "invalid", "the query is empty"),
        ("<search>\u200b \x00</search>", "invalid", "the query is empty"),
        ("<search>a\u202eb</search>", "search", "ab"),
        ("<search>a</answer>", "invalid", "</answer> closes what was not opened"),
        ("</search>", "invalid", "</search> closes what was not opened"),
        (f"<search>a{NEXT}{ANALYSIS}b</search>", "invalid", "<search> and </search> stand in two messages"),
        ("<answer>a", "invalid", "it has neither <search>query</search> nor <answer>answer</answer>"),
        ("<Answer>a</Answer>", "invalid", "it has neither <search>query</search> nor <answer>answer</answer>"),
        ("", "invalid", "it has neither <search>query</search> nor <answer>answer</answer>"),
    ],
)
def test_what_a_turn_with_tags_asks_for(text, kind, content):
    assert tags.parse(text) == Action(kind, content)


@pytest.mark.parametrize(
    ("text", "kind", "content"),
    [
        (f'{ANALYSIS}hm{NEXT}{CALL}{{"query":"who"}}<|call|>', "search", "who"),
        (
            '<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"query": " a "}<|call|>',
            "search",
            "a",
        ),
        ('<|channel|>analysis to=functions.search code<|message|>{"query":"a","topn":3}<|call|>', "search", "a"),
        (f"{ANALYSIS}so{NEXT}<|channel|>final<|message|> Paris <|return|>", "answer", "Paris"),
        ("<|channel|>final<|message|><|return|>", "answer", ""),
        (f"{CALL}who<|call|>", "invalid", "the arguments of functions.search are no JSON"),
        (f"{CALL}[1]<|call|>", "invalid", 'functions.search takes {"query": "…"}'),
        (f'{CALL}{{"query": 7}}<|call|>', "invalid", 'functions.search takes {"query": "…"}'),
        (f'{CALL}{{"query": " "}}<|call|>', "invalid", 'functions.search takes {"query": "…"}'),
        (f'{CALL}{{"query": "\\ud800"}}<|call|>', "invalid", 'functions.search takes {"query": "…"}'),
        (f"{CALL}{'[' * 100_000}<|call|>", "invalid", "the arguments of functions.search are no JSON"),
        (" to=functions.shell<|message|>{}<|call|>", "invalid", NO_SUCH),
        (f"{ANALYSIS}x<|call|>", "invalid", NO_SUCH),
        (f"{ANALYSIS}x<|return|>", "invalid", "it ends without a final message"),
        (
            "<|channel|>final<|message|>Par",
            "invalid",
            "it has neither a call of functions.search nor a whole final message",
        ),
        ("", "invalid", "it has neither a call of functions.search nor a whole final message"),
    ],
)
def test_what_a_turn_of_harmony_asks_for(text, kind, content):
    assert harmony.parse(text) == Action(kind, content)


@given(st.text())
def test_every_turn_is_read(text):
    for protocol in (tags, harmony):
        action = protocol.parse(text)
        assert action.kind in ("search", "answer", "invalid")
        assert action.kind != "search" or action.text


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("protocol", [tags, harmony], ids=["tags", "harmony"])
@pytest.mark.parametrize("limit", [150, 500])
def test_hostile_passages_stay_inside(name, protocol, limit):
    tokenizer = TOKENIZERS[name]
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    for seed in range(20):
        draw = random.Random(seed)
        texts = draw.sample(HOSTILE, 3)
        passages = [Passage(str(n), draw.choice(HOSTILE)[:2000], text, None) for n, text in enumerate(texts)]
        after = "<search>q</search>" if protocol is tags else "<|call|>"
        found = protocol.observation(passages, note="Go on.", after=after, limit=limit, tokenizer=tokenizer)
        assert len(found.tokens) <= limit
        text = tokenizer.decode(found.tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if protocol is tags:
            assert text.startswith("\n\n<information>") and text.endswith("</information>\n\nGo on.\n\n")
            ours = re.findall(r"<[\s/]*(?:information|search|answer)", text, re.IGNORECASE)
            assert ours == ["<information", "</information"]
            assert not special & set(found.tokens)
        else:
            assert text.startswith(harmony.REPLY) and text.endswith("\n\nGo on.<|end|><|start|>assistant")
            ours = tokenizer(harmony.REPLY + "<|end|><|start|>", add_special_tokens=False)["input_ids"]
            assert [t for t in found.tokens if t in special] == [t for t in ours if t in special]
        assert tags.parse(text[len("\n\n") :]).kind == "invalid"  # nothing in it is an action
        assert "\x00" not in text and "\u202e" not in text and "\x1b" not in text


@settings(max_examples=200)
@given(st.text(), st.text(), st.integers(60, 200))
def test_any_passage_stays_inside(title, body, limit):
    tokenizer = TOKENIZERS["tiny"]
    found = tags.observation([Passage("1", title, body, None)], note=None, after="", limit=limit, tokenizer=tokenizer)
    text = tokenizer.decode(found.tokens, clean_up_tokenization_spaces=False)
    assert len(found.tokens) <= limit
    assert observations.BROKEN not in text or observations.BROKEN in title + body  # no half of a character
    inner = text.removeprefix("\n\n<information>").removesuffix("</information>\n\n")
    assert len(inner) == len(text) - len("\n\n<information></information>\n\n")
    assert not observations._OPENING.search(inner)
    assert found.cut == inner.endswith(observations.CUT) or body.endswith(observations.CUT)


def test_an_observation_says_that_it_was_cut_and_where_none_fits():
    tokenizer = TOKENIZERS["o200k"]
    passages = [Passage("1", "A", "one two three " * 100, None)]
    whole = tags.observation(passages, note=None, after="", limit=500, tokenizer=tokenizer)
    part = tags.observation(passages, note=None, after="", limit=100, tokenizer=tokenizer)
    assert not whole.cut and part.cut and len(part.tokens) == 100
    assert "(the rest is left out)</information>" in tokenizer.decode(part.tokens)
    with pytest.raises(ValueError, match="found a limit of 10 tokens for an observation, wanted 16"):
        tags.observation(passages, note=None, after="", limit=10, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("after", "opening", "closing"),
    [
        ("text", "", ""),
        (f"{ANALYSIS}x", "", ""),
        (f"{ANALYSIS}x<|end|>", "<|start|>assistant<|channel|>analysis<|message|>", ""),
        (f"{ANALYSIS}x{NEXT}<|channel|>fi", "<|message|>", ""),
        (f"{ANALYSIS}x<|return|>", "<|start|>user<|message|>", "<|end|><|start|>assistant"),
        (f"{ANALYSIS}x<|call|>", "<|start|>user<|message|>", "<|end|><|start|>assistant"),
    ],
)
def test_tags_are_written_into_an_open_message(after, opening, closing):
    found = tags.observation(None, note="N", after=after, limit=99, tokenizer=TOKENIZERS["o200k"])
    assert TOKENIZERS["o200k"].decode(found.tokens) == f"{opening}\n\nN\n\n{closing}"


@pytest.mark.parametrize(
    ("after", "opening"),
    [
        ("<|call|>", harmony.REPLY),
        (f"{ANALYSIS}x<|return|>", "<|start|>user<|message|>"),
        (f"{ANALYSIS}x<|end|>", "<|start|>user<|message|>"),
        (f"{ANALYSIS}x", "<|end|><|start|>user<|message|>"),
        (f"{ANALYSIS}x{NEXT}", "<|message|><|end|><|start|>user<|message|>"),
        ("", "<|message|><|end|><|start|>user<|message|>"),
    ],
)
def test_a_call_is_answered_by_the_function_all_else_by_the_user(after, opening):
    found = harmony.observation(None, note="N", after=after, limit=99, tokenizer=TOKENIZERS["o200k"])
    assert TOKENIZERS["o200k"].decode(found.tokens) == f"{opening}N<|end|><|start|>assistant"


def test_tool_messages_are_openai_harmonys_token_for_token():
    from openai_harmony import Author, Conversation, DeveloperContent, Message, Role, SystemContent, ToolDescription

    parameters = {"type": "object", "properties": {"query": {"type": "string", "description": "What to look for."}}}
    tool = ToolDescription.new("search", "Find passages of the corpus.", parameters | {"required": ["query"]})
    instructions, _, declared = harmony.INSTRUCTION.partition("\n\n# Tools")
    developer = DeveloperContent.new().with_instructions(instructions).with_function_tools([tool])
    passages = [Passage("1", "Paris", "A city.", 0.5)]
    observation = harmony.observation(passages, note=None, after="<|call|>", limit=99, tokenizer=TOKENIZERS["o200k"])
    turn = f'{ANALYSIS}hm{NEXT}{CALL}{{"query":"who"}}<|call|>'
    sampled = TOKENIZERS["o200k"](turn, add_special_tokens=False)["input_ids"]
    messages = [
        Message.from_role_and_content(Role.SYSTEM, SystemContent.new()),
        Message.from_role_and_content(Role.DEVELOPER, developer),
        Message.from_role_and_content(Role.USER, "Who?"),
        Message.from_role_and_content(Role.ASSISTANT, "hm").with_channel("analysis"),
        Message.from_role_and_content(Role.ASSISTANT, json.dumps({"query": "who"}, separators=(",", ":")))
        .with_channel("commentary")
        .with_recipient("functions.search")
        .with_content_type("<|constrain|>json"),
        Message.from_author_and_content(Author.new(Role.TOOL, "functions.search"), "Doc 1(Title: Paris) A city.")
        .with_channel("commentary")
        .with_recipient("assistant"),
    ]
    encoding = load_encoding()
    wanted = encoding.render_conversation_for_completion(Conversation.from_messages(messages), Role.ASSISTANT)
    ours = sampled + observation.tokens
    assert wanted[-len(ours) :] == ours
    # the developer message and the system message's line on functions, as texts
    text = encoding.decode(wanted)
    assert f"# Instructions\n\n{instructions}\n\n# Tools{declared}<|end|>" in text
    assert "Calls to these tools must go to the commentary channel: 'functions'." in instructions
    assert "Calls to these tools must go to the commentary channel: 'functions'." in text.split("<|end|>")[0]
    assert encoding.parse_messages_from_completion_tokens(sampled, Role.ASSISTANT)[-1].recipient == "functions.search"
