"""What a checkpoint directory holds, checked before a stack is started on it."""

import json
from pathlib import Path


def require_gpt_oss(path: str | Path) -> None:
    """Raise ValueError unless `path` is a readable gpt-oss checkpoint with tokenizer: found, wanted, what to do."""
    path = Path(path)
    config_file = path / "config.json"
    if not config_file.is_file():
        found = "no config.json" if path.is_dir() else "no such directory"
        raise ValueError(f"{path}: found {found}; wanted a gpt-oss checkpoint directory; check the path of the model")
    try:
        model_type = json.loads(config_file.read_text()).get("model_type")
    except json.JSONDecodeError as error:
        raise ValueError(f"{config_file}: not JSON ({error.msg}); download or make the checkpoint again") from None
    if model_type != "gpt_oss":
        raise ValueError(f"{path}: found model_type {model_type!r}; wanted 'gpt_oss'; pass a gpt-oss checkpoint")
    missing = [n for n in ("tokenizer.json",) if not (path / n).is_file()]
    if not list(path.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise ValueError(f"{path}: found no {', '.join(missing)}; wanted a whole checkpoint; download or make it again")
