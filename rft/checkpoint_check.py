"""What a checkpoint directory holds, checked before a stack is started on it."""

import json
from pathlib import Path

from rft.shards import require_complete


def require_gpt_oss(path: str | Path) -> None:
    """Raise ValueError unless `path` is a complete gpt-oss checkpoint with tokenizer: found, wanted, what to do.

    Of the weights `rft.shards.require_complete` says what complete means.
    """
    path = Path(path)
    config_file = path / "config.json"
    if not config_file.is_file():
        found = "no config.json" if path.is_dir() else "no such directory"
        raise ValueError(f"{path}: found {found}; wanted a gpt-oss checkpoint directory; check the path of the model")
    try:
        config = json.loads(config_file.read_text())
    except ValueError as error:  # not JSON, or not text
        raise ValueError(f"{config_file}: not JSON ({error}); download or make the checkpoint again") from None
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if model_type != "gpt_oss":
        raise ValueError(f"{path}: found model_type {model_type!r}; wanted 'gpt_oss'; pass a gpt-oss checkpoint")
    wanted = ("tokenizer.json", "*.safetensors")
    missing = [name for name in wanted if not any(file.stat().st_size for file in path.glob(name))]
    if missing:
        raise ValueError(
            f"{path}: found no {', '.join(missing)}; wanted a complete checkpoint; download or make it again"
        )
    require_complete(path, config)
