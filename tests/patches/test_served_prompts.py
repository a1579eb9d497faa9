"""A probe of served-prompts-as-trained.patch."""

import pytest
from openai_harmony import Conversation, Message, Role, SystemContent

from rft.runs.preflight import harmony

DAY = "2025-08-05"


@pytest.fixture
def encoding(tmp_path, monkeypatch):
    harmony.unpack_vocabulary(str(tmp_path))
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(tmp_path))
    return harmony.load_encoding()


def served(question: str) -> str:
    """The prompt that vLLM's chat endpoint makes of a question."""
    from vllm.entrypoints.openai.parser import harmony_utils

    messages = [harmony_utils.get_system_message(), harmony_utils.get_user_message(question)]
    return harmony_utils.get_encoding().decode(harmony_utils.render_for_completion(messages))


def test_chat_endpoint_asks_as_the_template_does(encoding, monkeypatch):
    """gpt-oss's template, as openai-harmony renders it: one day, three channels. Without CHAT_DATE vLLM's own."""
    monkeypatch.setenv("CHAT_DATE", DAY)
    system = Message.from_role_and_content(Role.SYSTEM, SystemContent.new().with_conversation_start_date(DAY))
    chat = Conversation.from_messages([system, Message.from_role_and_content(Role.USER, "2 + 2?")])
    wanted = encoding.decode(encoding.render_conversation_for_completion(chat, Role.ASSISTANT))
    assert "analysis, commentary, final" in wanted and DAY in wanted
    assert served("2 + 2?") == wanted
    monkeypatch.delenv("CHAT_DATE")
    assert served("2 + 2?") != wanted and DAY not in served("2 + 2?")
