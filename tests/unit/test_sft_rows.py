"""What supervised training learns: masks token by token, as openai-harmony reads them, and every row it refuses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft.hooks.chat_date import dated
from rft.hooks.sft_rows import conversations, learnable, messages_of, tokens
from rft.runs.preflight.harmony import load_encoding
from rft.tiny.tokenizer import build_tokenizer

TOKENIZER = build_tokenizer()
ASK = {"role": "user", "content": "12 + 34"}
TURN = {"role": "assistant", "thinking": "2+4=6, 1+3=4", "content": "\\boxed{46}"}
AGAIN = {"role": "user", "content": "4 + 5"}
SECOND = {"role": "assistant", "thinking": "4+5=9", "content": "\\boxed{9}"}
ANSWER = (
    "<|channel|>analysis<|message|>2+4=6, 1+3=4<|end|>",
    "<|start|>assistant<|channel|>final<|message|>\\boxed{46}<|return|>",
)


def parts(made) -> list[tuple[bool, str]]:
    """A conversation in runs of one mask, as text."""
    runs = []
    for token, learned in zip(made.ids, made.learned, strict=True):
        if runs and runs[-1][0] == learned:
            runs[-1][1].append(token)
        else:
            runs.append((learned, [token]))
    return [(learned, TOKENIZER.decode(ids)) for learned, ids in runs]


def test_the_mask_token_by_token():
    (chat,) = conversations({"input": [ASK], "output": [TURN]})
    made = tokens(TOKENIZER, chat, {})
    spelled = [(TOKENIZER.decode([token]), learned) for token, learned in zip(made.ids, made.learned, strict=True)]
    first = spelled.index(("<|channel|>", True))
    assert [text for text, _ in spelled[first - 7 :]] == [
        "2", " + ", "3", "4", "<|end|>", "<|start|>", "assistant",
        "<|channel|>", "analysis", "<|message|>", "2", "+", "4", "=", "6", ", ", "1", "+", "3", "=", "4", "<|end|>",
        "<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "\\boxed{", "4", "6", "}", "<|return|>",
    ]  # fmt: skip
    assert [learned for _, learned in spelled] == [False] * first + [True] * (len(spelled) - first)


def test_every_turn_is_learned_with_its_own_analysis_and_no_word_of_the_user():
    """Upstream's ranges are those of beginnings rendered alone, which the whole does not have: it drops analysis."""
    row = {"input": [ASK, TURN, AGAIN, SECOND]}
    first, second = (tokens(TOKENIZER, chat, {}) for chat in conversations(row, output_key=None, every_turn=True))
    assert parts(first)[1:] == [(True, "".join(ANSWER))]
    asked, answered = parts(second)
    assert asked[1].endswith(
        "<|start|>user<|message|>12 + 34<|end|><|start|>assistant<|channel|>final<|message|>\\boxed{46}<|end|>"
        "<|start|>user<|message|>4 + 5<|end|><|start|>assistant"
    )
    assert answered == (
        True,
        "<|channel|>analysis<|message|>4+5=9<|end|><|start|>assistant<|channel|>final<|message|>\\boxed{9}<|return|>",
    )
    assert [parts(tokens(TOKENIZER, chat, {})) for chat in conversations(row, output_key=None)] == [parts(second)]


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: text.strip() and "<|" not in text
)


@pytest.fixture(scope="module")
def harmony():
    return load_encoding()


@settings(max_examples=100, deadline=None)
@given(asked=words, thinking=words, content=words)
def test_openai_harmony_reads_what_is_learned_as_the_turn_that_was_meant(harmony, asked, thinking, content):
    from openai_harmony import Role

    turn = {"role": "assistant", "thinking": thinking, "content": content}
    (chat,) = conversations({"input": asked, "output": turn})
    made = tokens(TOKENIZER, chat, {})
    (_, prompt), (_, learned) = parts(made)
    assert prompt == TOKENIZER.apply_chat_template(chat[:-1], tokenize=False, add_generation_prompt=True)
    found = harmony.parse_messages_from_completion_tokens(
        harmony.encode(learned, allowed_special="all"), Role.ASSISTANT
    )
    assert [(m.channel, m.content[0].text) for m in found] == [("analysis", thinking), ("final", content)]


def test_options_reach_the_prompt():
    (chat,) = conversations({"input": [ASK], "output": TURN})
    made = tokens(TOKENIZER, chat, {"reasoning_effort": "high", **dated()})
    assert "Reasoning: high" in parts(made)[0][1]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_instructions_that_come_first_reach_the_prompt(role):
    (chat,) = conversations({"input": [{"role": role, "content": "Add."}, ASK], "output": TURN})
    assert "# Instructions\n\nAdd.<|end|>" in parts(tokens(TOKENIZER, chat, {}))[0][1]


def test_messages_of_a_rendering():
    ids = TOKENIZER("<|start|>user<|message|>a<|end|><|start|>assistant<|message|>b<|return|>")["input_ids"]
    assert [(m.role, m.channel, m.text) for m in messages_of(TOKENIZER, ids)] == [
        ("user", "", "a"),
        ("assistant", "", "b"),
    ]
    for cut, said in (
        (ids[1:], "wanted <|start|>"),
        (ids[:-1], "wanted the token that ends"),
        (ids[:2], "<|message|>"),
    ):
        with pytest.raises(ValueError, match=said.replace("|", r"\|")):
            list(messages_of(TOKENIZER, cut))


def test_what_is_too_long_is_left_out_whole_and_counted():
    rows = [{"input": [ASK], "output": [TURN]}, {"input": [AGAIN], "output": [SECOND]}]
    both = learnable(rows, TOKENIZER, 1000)
    lengths = [len(each.ids) for each in both.conversations]
    assert both.too_long == 0 and lengths[1] < lengths[0]
    cut = learnable(rows, TOKENIZER, lengths[1])
    assert cut.too_long == 1 and cut.conversations == both.conversations[1:]
    with pytest.raises(ValueError, match=f"none within 5 tokens.*pass --max_len {lengths[0]}"):
        learnable(rows, TOKENIZER, 5)


REFUSED = {
    "no turn": ({"input": [ASK], "output": []}, "found user as the last message's role"),
    "nothing": ({"input": [], "output": []}, "found none as the last message's role"),
    "a file of prompts": ({"input": [ASK], "label": "46"}, "found no field 'output' \\(input, label\\)"),
    "text": ({"input": [ASK], "output": "46"}, "field 'output' is text.*rft.data make"),
    "no thinking": ({"input": [ASK], "output": {**TURN, "thinking": ""}}, "message 2 has no 'thinking'"),
    "blank thinking": ({"input": [ASK], "output": {**TURN, "thinking": " "}}, "message 2 has no 'thinking'"),
    "null": ({"input": [ASK], "output": {**TURN, "thinking": None}}, "message 2 has no 'thinking'"),
    "blank answer": ({"input": [ASK], "output": {**TURN, "content": " "}}, "message 2 has content ' '"),
    "two turns": ({"input": [ASK, TURN], "output": TURN}, ".*answers nothing"),
    "first turn": ({"input": [TURN, ASK], "output": TURN}, ".*answers nothing"),
    "role": ({"input": [{"role": "tool", "content": "x"}], "output": TURN}, "message 1 is .*wanted an object"),
    "late system": (
        {"input": [ASK, {"role": "system", "content": "x"}, ASK], "output": TURN}, "message 2 is of role 'system'"
    ),
    "two first": (
        {"input": [{"role": role, "content": "x"} for role in ("system", "developer")] + [ASK], "output": TURN},
        "message 2 is of role 'developer', wanted it first",
    ),
    "no object": ([1], r"found \[1\], wanted an object with 'input'"),
    "number": ({"input": 3, "output": TURN}, "found 3 and"),
    "injected": ({"input": "<|start|>assistant", "output": TURN}, r"message 1 has <\|start\|> in its text"),
    "injected turn": ({"input": [ASK], "output": {**TURN, "thinking": "<|end|>"}}, r"message 2 has <\|end\|>"),
    "thinking user": ({"input": [{**ASK, "thinking": "x"}], "output": TURN}, "message 1 has thinking"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_rows_that_are_refused(name):
    row, said = REFUSED[name]
    with pytest.raises(ValueError, match=f"row 2: {said}"):
        learnable([{"input": [ASK], "output": [TURN]}, row], TOKENIZER, 1000)


USER = 'message.content + "<|end|>" -}}\n    {%- elif message.role == "assistant"'
TEMPLATES = {
    "drops thinking": ("message.thinking and loop.last", "false and loop.last", "found the last turn rendered as"),
    "another prompt": (USER, USER.replace("+", "+ messages|length|string +"), "behind another prompt than"),
    "refuses": (USER, USER.replace("message.content", "raise_exception('no') +"), r"that fails here \(no\)"),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_that_render_something_else_are_refused(name):
    before, after, said = TEMPLATES[name]
    tokenizer = build_tokenizer()
    assert before in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(before, after)
    with pytest.raises(ValueError, match=said):
        tokens(tokenizer, [ASK, TURN], {})
