"""Keep what a reward function logs from breaking a run: only finite numbers become tensors."""

import math
import numbers


def numeric_only(extra_logs: dict) -> dict[str, float]:
    """The numeric fields of a reward function's `extra_logs`, as floats.

    Accepts Python and numpy numbers, booleans, and one-element tensors or arrays (their first element is taken, as
    OpenRLHF does for tensors). Strings, None, NaN and infinities are dropped: `torch.tensor(["text"])` would stop the
    run (OpenRLHF `experience_maker.py`, unchanged up to 0.11.0).
    """
    kept = {}
    for key, value in (extra_logs or {}).items():
        if hasattr(value, "flatten") and getattr(value, "size", None) is not None:
            flat = value.flatten()
            value = flat[0].item() if len(flat) else None
        if isinstance(value, numbers.Real) and math.isfinite(value):
            kept[key] = float(value)
    return kept
