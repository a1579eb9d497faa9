"""The tiny tokenizer: every text survives, digits stand alone, and chats read as openai_harmony renders them."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from transformers import AutoTokenizer

from rft.runs.preflight.harmony import load_encoding
from rft.tiny.task import SIZES, make_splits
from rft.tiny.tokenizer import SPECIAL_TOKENS, build_tokenizer

TOKENIZER = build_tokenizer()
SIZES_SMALL = dict.fromkeys(SIZES, 20)


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


@settings(max_examples=300)
@given(st.text())
@example("a .b ,c  'do n't'\t\r\n\n ")
@example("\x00\u200b日本 é <|start|>é<|end|>")
@example("Steps: 12, 3")
def test_every_text_round_trips(text):
    # a lone surrogate is no text: it has no UTF-8 form
    assert TOKENIZER.decode(ids_of(text)) == text


@settings(max_examples=100)
@given(st.text(alphabet="0123456789+-=, .{}\\boxedA\n", max_size=60))
def test_digits_are_always_tokens_of_their_own(text):
    for token in ids_of(text):
        piece = TOKENIZER.decode([token])
        assert len(piece) == 1 or not any(c.isdigit() for c in piece)


def test_special_tokens_and_size():
    assert len(TOKENIZER) < 512
    for token in SPECIAL_TOKENS:
        assert ids_of(token) == [TOKENIZER.convert_tokens_to_ids(token)]
    assert TOKENIZER.eos_token == "<|return|>" and TOKENIZER.pad_token == "<|endoftext|>"
    assert TOKENIZER.eos_token_id != TOKENIZER.pad_token_id


def test_prompts_of_the_task_are_short_and_of_one_length():
    problems = make_splits(sizes=SIZES_SMALL)["heldout"]
    prompts = [TOKENIZER.apply_chat_template(p["input"], tokenize=False, add_generation_prompt=True) for p in problems]
    lengths = {len(ids_of(prompt)) for prompt in prompts}
    assert len(lengths) == 1 and lengths.pop() <= 64


def test_rendering_then_tokenising_equals_tokenising_in_one_go():
    chat = make_splits(sizes=SIZES_SMALL)["warm"][0]["input"]
    text = TOKENIZER.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert ids_of(text) == TOKENIZER.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)


def test_saved_files_load_as_the_same_tokenizer(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    assert (tmp_path / "chat_template.jinja").is_file()
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    chat = [{"role": "user", "content": "12 + 34 = ? Zürich"}]
    assert loaded.apply_chat_template(chat) == TOKENIZER.apply_chat_template(chat)
    assert (loaded.eos_token_id, loaded.pad_token_id) == (TOKENIZER.eos_token_id, TOKENIZER.pad_token_id)
    assert loaded.decode(loaded("a , b")["input_ids"]) == "a , b"


@pytest.fixture(scope="module")
def harmony():
    """The reference encoding, offline."""
    return load_encoding()


def reference_messages(chat: list[dict], effort: str = "low") -> list:
    """The chat as openai_harmony's messages: system first, no dates; analysis and final as messages of their own."""
    from openai_harmony import DeveloperContent, Message, ReasoningEffort, Role, SystemContent

    system = SystemContent(knowledge_cutoff=None, reasoning_effort=ReasoningEffort(effort.capitalize()))
    messages = [Message.from_role_and_content(Role.SYSTEM, system)]
    for turn in chat:
        if turn["role"] in ("system", "developer"):
            content = DeveloperContent(instructions=turn["content"])
            messages.append(Message.from_role_and_content(Role.DEVELOPER, content))
        elif turn["role"] == "user":
            messages.append(Message.from_role_and_content(Role.USER, turn["content"]))
        else:
            if "thinking" in turn:
                messages.append(
                    Message.from_role_and_content(Role.ASSISTANT, turn["thinking"]).with_channel("analysis")
                )
            messages.append(Message.from_role_and_content(Role.ASSISTANT, turn["content"]).with_channel("final"))
    return messages


USER = {"role": "user", "content": "Put the final answer within \\boxed{}.\nWhat is 12 + 34 = ?"}
ANSWER = {"role": "assistant", "thinking": "2+4=6, 1+3=4", "content": "\\boxed{46}"}
PROMPTS = {
    "user": [USER],
    "developer": [{"role": "developer", "content": "Be brief."}, USER],
    "system": [{"role": "system", "content": "Be brief.\n\nUse digits."}, USER],
    "turns": [USER, ANSWER, {"role": "user", "content": "And now 5 + 6 ?"}],
    "other scripts": [{"role": "user", "content": "こんにちは <b>né</b>\t{{ x }} {% if %}"}],
}


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("effort", ["low", "medium", "high"])
def test_prompts_equal_openai_harmony(harmony, name, effort):
    from openai_harmony import Conversation, Role

    chat = PROMPTS[name]
    reference = Conversation.from_messages(reference_messages(chat, effort))
    expected = harmony.decode(harmony.render_conversation_for_completion(reference, Role.ASSISTANT))
    rendered = TOKENIZER.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, reasoning_effort=effort)
    assert rendered == expected


def test_a_worked_answer_is_what_openai_harmony_parses(harmony):
    """Rendering for training drops analysis over there, so the answer is checked through the reference parser."""
    from openai_harmony import Role

    prompt = TOKENIZER.apply_chat_template([USER], tokenize=False, add_generation_prompt=True)
    whole = TOKENIZER.apply_chat_template([USER, ANSWER], tokenize=False)
    response = whole.removeprefix(prompt)
    assert whole.startswith(prompt) and response.endswith("<|return|>")
    tokens = harmony.encode(response, allowed_special="all")
    messages = harmony.parse_messages_from_completion_tokens(tokens, Role.ASSISTANT)
    assert [(m.channel, m.content[0].text) for m in messages] == [
        ("analysis", ANSWER["thinking"]),
        ("final", ANSWER["content"]),
    ]


def test_a_closed_chat_without_thinking_equals_openai_harmony(harmony):
    from openai_harmony import Conversation

    chat = [USER, {"role": "assistant", "content": "\\boxed{46}"}]
    reference = Conversation.from_messages(reference_messages(chat))
    expected = harmony.decode(harmony.render_conversation_for_training(reference))
    assert TOKENIZER.apply_chat_template(chat, tokenize=False) == expected


@pytest.mark.parametrize(
    "chat", [[{"role": "tool", "content": "x"}], [USER, {"role": "system", "content": "late"}]], ids=["tool", "late"]
)
def test_unsupported_chats_are_refused(chat):
    with pytest.raises(TemplateError):
        TOKENIZER.apply_chat_template(chat, tokenize=False)
