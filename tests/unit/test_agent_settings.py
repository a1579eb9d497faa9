"""The variables of a search agent."""

import pytest

from rft.agents.settings import WHOLE, Settings
from rft.retriever.client import address

NAMES = ("RFT_AGENT_PROTOCOL", "RETRIEVER_URL", *(wanted.variable for wanted in WHOLE.values()))


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_unset_and_empty_variables_leave_the_defaults(monkeypatch):
    assert Settings.from_environment() == Settings()
    assert Settings() == Settings("tags", 4, 500, 500, 3, address())
    for name in NAMES:
        monkeypatch.setenv(name, "")
    assert Settings.from_environment() == Settings()


def test_variables_are_read_and_where_the_retriever_stands_is_no_part_of_the_identity(monkeypatch):
    given = ("harmony", "http://there:81", "2", "64", "128", "5")
    for name, value in zip(NAMES, given, strict=True):
        monkeypatch.setenv(name, value)
    found = Settings.from_environment()
    assert found == Settings("harmony", 2, 64, 128, 5, "http://there:81")
    assert found.identity() == {
        "protocol": "harmony", "max_turns": 2, "turn_tokens": 64, "observation_tokens": 128, "topk": 5,
    }  # fmt: skip


@pytest.mark.parametrize(
    "name, value, wanted",
    [
        ("RFT_AGENT_PROTOCOL", "xml", "tags or harmony"),
        ("RFT_AGENT_PROTOCOL", "Tags", "tags or harmony"),
        ("RFT_AGENT_MAX_TURNS", "0", "a whole number from 1 to 64"),
        ("RFT_AGENT_MAX_TURNS", "2.0", "a whole number from 1 to 64"),
        ("RFT_AGENT_MAX_TURNS", "-1", "a whole number from 1 to 64"),
        ("RFT_AGENT_MAX_TURNS", "٣", "a whole number from 1 to 64"),
        ("RFT_AGENT_TURN_TOKENS", "many", "a whole number from 1 to 131072"),
        ("RFT_AGENT_OBSERVATION_TOKENS", "31", "a whole number from 32 to 131072"),
        ("RFT_AGENT_TOPK", "101", "a whole number from 1 to 100"),
        ("RETRIEVER_URL", "localhost:8000", "an address as http://127.0.0.1:8000"),
        ("RFT_AGENT_TOPK", "9" * 5000, "a whole number from 1 to 100"),  # more digits than Python reads
        ("RETRIEVER_URL", " http://here", "an address as http://127.0.0.1:8000"),
        ("RETRIEVER_URL", "http://here\n", "an address as http://127.0.0.1:8000"),
        ("RETRIEVER_URL", "http://:8000", "an address as http://127.0.0.1:8000"),
        ("RETRIEVER_URL", "http://here:eighty", "an address as http://127.0.0.1:8000"),
    ],
    ids=lambda text: text[:40],
)
def test_a_wrong_value_is_named_with_what_is_wanted(monkeypatch, name, value, wanted):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError) as caught:
        Settings.from_environment()
    assert str(caught.value) == f"found {name}={value}, wanted {wanted}; correct it or unset it"


def test_a_wrong_value_of_code_is_named_too():
    with pytest.raises(ValueError, match="found RFT_AGENT_TOPK=True, wanted a whole number"):
        Settings(topk=True)
