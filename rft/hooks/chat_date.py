"""One date in all prompts: gpt-oss's chat template writes the day on which it is rendered into the system message.

A resume on another day, the second arm of a pair and a later evaluation would otherwise get other prompts, and so
other sampling seeds (`rft.hooks.rollout_seeds`).
"""

import os
from datetime import datetime

DEFAULT = "2025-08-05"  # the day gpt-oss was published


def dated() -> dict:
    """Arguments for a tokenizer's `apply_chat_template`: the template's `strftime_now` tells $CHAT_DATE.

    CHAT_DATE is YYYY-MM-DD (default 2025-08-05), or `today` for the template's own. What is passed to a template goes
    before jinja's global of that name, which transformers sets.

    Raises:
        ValueError: CHAT_DATE is neither.
    """
    text = os.environ.get("CHAT_DATE") or DEFAULT
    if text == "today":
        return {}
    try:
        day = datetime.strptime(text, "%Y-%m-%d")
    except ValueError:
        raise ValueError(f"found CHAT_DATE={text}; wanted YYYY-MM-DD, or today; unset CHAT_DATE") from None
    return {"strftime_now": day.strftime}


def fixed() -> str | None:
    """$CHAT_DATE where it names a day, for a server's chat endpoint; None where it is unset or `today`."""
    return dated()["strftime_now"]("%Y-%m-%d") if os.environ.get("CHAT_DATE", "today") not in ("", "today") else None
