"""A saved adapter as a link of a chain: what identifies it, which run trained it, what that run itself began from."""

import hashlib
import json
from pathlib import Path

from rft.record.digest import tree_digest

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
CHAIN = "chain"  # of run.json: the links from the base to the adapter that the run began from; empty for a new adapter


def adapter_digest(path: Path) -> str:
    """Identity of an adapter: its tensors and their scaling, whatever lies beside them."""
    config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    scaling = [config["r"], config["lora_alpha"], bool(config.get("use_rslora"))]
    return hashlib.sha256(json.dumps([scaling, tree_digest(path / WEIGHTS)]).encode()).hexdigest()


def manifest_of(adapter: Path) -> Path | None:
    """run.json of the run that trained an adapter: RUN/adapter, or RUN/checkpoints/best_step<N>_hf.

    As the path is written first, since RUN/adapter may be a link to a place outside of the run.
    """
    folders = [*adapter.absolute().parents[:2], *adapter.resolve().parents[:2]]
    return next((folder / "run.json" for folder in folders if (folder / "run.json").is_file()), None)


def run_of(adapter: Path) -> dict:
    """The content of `manifest_of`; empty where there is none, or none that can be read."""
    file = manifest_of(adapter)
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file else {}
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def chain_of(adapter: Path) -> list[dict]:
    """The links that lead to an adapter, the oldest first and itself last; each trained what the one before it left.

    A link has `adapter` (its folder), `sha256` (`adapter_digest`), `base` (as its config names it), and of the run that
    trained it, None where it is not known, `run` (its folder) and `trained_by` (the module of its command).
    """
    manifest, file = run_of(adapter), manifest_of(adapter)
    command = manifest.get("command") or []
    link = {
        "adapter": str(adapter),
        "sha256": adapter_digest(adapter),
        "base": json.loads((adapter / CONFIG).read_text(encoding="utf-8")).get("base_model_name_or_path"),
        "run": str(file.parent) if file else None,
        "trained_by": command[command.index("-m") + 1] if "-m" in command[:-1] else None,
    }
    return [*(manifest.get(CHAIN) or []), link]


def told(chain: list[dict]) -> str:
    """A chain in one line, without this machine's folders: base → launcher/run (sha256) → …; empty for none."""
    if not chain:
        return ""
    names = [_name(link) for link in chain]
    links = [f"{name} (sha256 {link['sha256'][:12]})" for name, link in zip(names, chain, strict=True)]
    return " → ".join([Path(chain[0]["base"] or "base not known").name, *links])


def _name(link: dict) -> str:
    """Launcher and run, where the run is known, else the adapter's own folder."""
    return "/".join(Path(link["run"]).parts[-2:]) if link["run"] else Path(link["adapter"]).name
