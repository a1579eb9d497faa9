"""Keep what a reward function logs from breaking a run: only numbers become tensors."""

import math
import numbers


def numeric_only(extra_logs: dict) -> dict[str, float]:
    """The numeric fields of a reward function's `extra_logs`, as floats.

    Accepts Python and numpy numbers, booleans, and tensors or arrays, whose first element is taken (as OpenRLHF does).
    None and empty arrays become NaN rather than vanish: samples are batched by the keys of the first one, so a key must
    be in all samples or in none; the metrics file writes NaN as null. Text and other objects are dropped:
    `torch.tensor(["text"])` would stop the run (OpenRLHF `experience_maker.py`, unchanged up to 0.11.0).
    """
    kept = {}
    for key, value in (extra_logs or {}).items():
        if hasattr(value, "flatten") and getattr(value, "size", None) is not None:
            flat = value.flatten()
            value = flat[0].item() if len(flat) else None
        if value is None:
            value = math.nan
        if isinstance(value, numbers.Real):
            kept[key] = float(value)
    return kept


def text_only(extra_logs: dict) -> dict[str, str]:
    """The text fields of a reward function's `extra_logs`, for the sample files; a list of one text counts as one."""
    texts = {}
    for key, value in (extra_logs or {}).items():
        if isinstance(value, (list, tuple)) and len(value) == 1:
            value = value[0]
        if isinstance(value, str):
            texts[key] = value
    return texts
