"""Python code that a checkpoint brings along: run only when asked to. Standard library only."""

import json
import os
from argparse import Namespace
from pathlib import Path

from rft.record.flags import flag

# What `--trust_remote_code` sets, for every process of a run: Ray's workers and vLLM's cores inherit it.
VARIABLE = "RFT_TRUST_REMOTE_CODE"
NAMING_CODE = ("config.json", "tokenizer_config.json")  # where transformers reads `auto_map`


def trusted() -> bool:
    """`trust_remote_code` for transformers and vLLM, in trainer, engine, data and evaluation."""
    return flag(VARIABLE)


def settle(trust: bool) -> None:
    """Make `trusted` answer so in this process and in those that it will start, whatever the environment says."""
    os.environ[VARIABLE] = "1" if trust else "0"


def refuse(args: Namespace) -> None:
    """`require_own_code` for the models of a training command, unless it asks for their code.

    Raises:
        ValueError: see `require_own_code`.
    """
    if not args.trust_remote_code:
        for checkpoint in (args.pretrain, args.reward_pretrain, args.critic_pretrain):
            require_own_code(checkpoint or "", "--trust_remote_code")


def require_own_code(checkpoint: str | Path, option: str) -> None:
    """Refuse a checkpoint directory that names code of its own, also where transformers knows the architecture.

    There it would take its own class without a word, so that the model trained is not the one that the author means.
    gpt-oss needs none. Names of the hub, which are no directories, are left to transformers, which refuses as well.

    Args:
        option: the one that asks for the code.

    Raises:
        ValueError: file, module, and what to do.
    """
    for file in (Path(checkpoint, name) for name in NAMING_CODE):
        try:
            named = json.loads(file.read_text(encoding="utf-8")).get("auto_map")
        except (OSError, ValueError, AttributeError):
            continue  # whoever loads the file says what is wrong with it
        if named:
            modules = sorted({str(place) for entry in named.values() for place in _flat(entry)})
            raise ValueError(
                f"{file}: found code that the checkpoint brings along ({', '.join(modules)} in auto_map); "
                f"wanted none, since it would run with all rights of this user; "
                f"read it and pass {option}, or take auto_map out of the file"
            )


def _flat(entry: object) -> list:
    """Classes that one entry of `auto_map` names; of a tokenizer's two, one may be null."""
    return [name for name in (entry if isinstance(entry, list) else [entry]) if name]
