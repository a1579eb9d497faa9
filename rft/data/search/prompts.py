"""What a protocol tells the model, before the question."""

import importlib

from rft.agents.settings import PROTOCOLS

DEFAULT = "tags"


def instruction_of(protocol: str) -> str:
    """The first message of every row; ValueError names the protocols where this is none."""
    if protocol not in PROTOCOLS:
        raise ValueError(f"found protocol {protocol!r}, wanted one of {', '.join(PROTOCOLS)}; correct --protocol")
    return importlib.import_module(f"rft.agents.{protocol}").INSTRUCTION
