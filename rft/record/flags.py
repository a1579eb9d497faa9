"""Variables of the environment that are yes or no, read as `flag` of launch/usage.sh reads them."""

import os

WORDS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)


def flag(name: str) -> bool:
    """Whether the variable says yes, in any case of letters; False where it is unset or empty.

    Raises:
        ValueError: it is neither yes nor no.
    """
    value = os.environ.get(name, "")
    if value and value.lower() not in WORDS:
        raise ValueError(
            f"{name} is neither yes nor no\n  found:  {name}={value}\n"
            f"  wanted: 1, true, yes, on, or 0, false, no, off\n  repair: correct it, or unset {name}"
        )
    return WORDS.get(value.lower(), False)
