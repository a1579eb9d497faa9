"""What a search agent may do, from the environment of a run: OpenRLHF gives the file of an agent no options."""

import os
import re
from dataclasses import asdict, dataclass
from typing import NamedTuple

from rft.address import is_address
from rft.retriever import MOST_PASSAGES, PORT, URL_VARIABLE

PROTOCOLS = ("tags", "harmony")


class Whole(NamedTuple):
    """The whole numbers that a setting may have, both ends included, and its variable."""

    variable: str
    low: int
    high: int


WHOLE = {
    "max_turns": Whole("RFT_AGENT_MAX_TURNS", 1, 64),
    "turn_tokens": Whole("RFT_AGENT_TURN_TOKENS", 1, 131_072),
    "observation_tokens": Whole("RFT_AGENT_OBSERVATION_TOKENS", 32, 131_072),
    "topk": Whole("RFT_AGENT_TOPK", 1, MOST_PASSAGES),
}
PROTOCOL_VARIABLE = "RFT_AGENT_PROTOCOL"


class OutOfRange(ValueError):
    """A setting that no agent has, with its variable of the environment."""

    def __init__(self, variable: str, found: object, wanted: str):
        super().__init__(f"found {variable}={found}, wanted {wanted}; correct it or unset it")
        self.variable, self.found, self.wanted = variable, found, wanted


@dataclass(frozen=True)
class Settings:
    """The limits of a conversation, and where it searches.

    Args:
        protocol: how actions and observations are written: `tags` or `harmony`.
        max_turns: turns of the policy, the one that answers among them.
        turn_tokens: the most tokens that are sampled in one turn; `--generate_max_len` where that is less.
        observation_tokens: the most tokens of one observation, its tags included.
        topk: passages a search.
        retriever_url: `http://HOST:PORT`.

    Raises:
        OutOfRange: a value out of its range; the text names the variable, what was found and what is wanted.
    """

    protocol: str = "tags"
    max_turns: int = 4
    turn_tokens: int = 500
    observation_tokens: int = 500
    topk: int = 3
    retriever_url: str = f"http://127.0.0.1:{PORT}"

    def __post_init__(self):
        if self.protocol not in PROTOCOLS:
            raise OutOfRange(PROTOCOL_VARIABLE, self.protocol, " or ".join(PROTOCOLS))
        for field, wanted in WHOLE.items():
            value = getattr(self, field)
            if type(value) is not int or not wanted.low <= value <= wanted.high:
                raise OutOfRange(wanted.variable, value, f"a whole number from {wanted.low} to {wanted.high}")
        if not is_address(self.retriever_url):
            raise OutOfRange(URL_VARIABLE, self.retriever_url, "an address as http://127.0.0.1:8000")

    @classmethod
    def from_environment(cls) -> "Settings":
        """The settings of this process; a variable that is unset or empty leaves the default.

        Raises:
            OutOfRange: see the class.
        """
        read = {PROTOCOL_VARIABLE: "protocol", URL_VARIABLE: "retriever_url"}
        found = {field: text for variable, field in read.items() if (text := os.environ.get(variable))}
        for field, wanted in WHOLE.items():
            if text := os.environ.get(wanted.variable):
                found[field] = int(text) if re.fullmatch("[0-9]{1,9}", text) else text
        return cls(**found)

    def identity(self) -> dict[str, str | int]:
        """What decides a conversation, for caches and records: everything but where the retriever stands. What it
        holds is its corpus's hash."""
        return {name: value for name, value in asdict(self).items() if name != "retriever_url"}
