"""What a protocol tells the model, before the question."""

from rft.agents.settings import PROTOCOLS

DEFAULT = "tags"


def instruction_of(protocol: str) -> str:
    """The first message of every row; ValueError names the protocols where this is none."""
    if protocol not in PROTOCOLS:
        raise ValueError(f"found protocol {protocol!r}, wanted one of {', '.join(PROTOCOLS)}; correct --protocol")
    from rft.agents import harmony, tags

    return {"tags": tags, "harmony": harmony}[protocol].INSTRUCTION
