"""The models to evaluate, and whether each is what it says: checked before an engine starts."""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rft import shards
from rft.checkpoint_check import require_gpt_oss
from rft.hooks.saved_adapter import base_model_of, is_adapter, read_adapter
from rft.options.remote_code import require_own_code, trusted
from rft.record.adapters import adapter_digest as adapter_digest
from rft.record.adapters import manifest_of
from rft.record.digest import tree_digest

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MERGE_RECORD = "merged_from.json"  # written by rft.evals.merge beside the weights


class Model(NamedTuple):
    """One model of an evaluation; `base` is the checkpoint that the engine loads."""

    name: str
    path: Path
    kind: str  # base, merged or adapter
    base: Path


def checked(named: list[tuple[str, Path]], base: Path | None = None) -> list[Model]:
    """The models of `--model NAME=PATH`, in order.

    Args:
        named: names and directories.
        base: the base checkpoint of every adapter, where it is no longer at the place that the adapter names.

    Raises:
        ValueError: a name twice, a directory that is missing or incomplete, an adapter whose base differs,
            or a checkpoint that brings code along.
    """
    models = []
    for name, path in named:
        if any(name == other.name for other in models):
            raise ValueError(
                f"found the name {name!r} twice; wanted one name per model; rename one in --model NAME=PATH"
            )
        try:
            models.append(_checked(name, path, base))
            if not trusted():
                require_own_code(models[-1].base, "--trust-remote-code")
        except ValueError as error:
            raise ValueError(f"model {name}: {error}") from None
    return models


def _checked(name: str, path: Path, base: Path | None) -> Model:
    if not is_adapter(path):
        require_gpt_oss(path)
        return Model(name, path, "merged" if (path / MERGE_RECORD).is_file() else "base", path.resolve())
    recorded = Path(base_model_of(path))
    found = (base or recorded).resolve()
    try:
        require_gpt_oss(found)
    except ValueError as error:
        raise ValueError(f"the adapter's base: {error}, or name its new place with --base") from None
    manifest, _ = read_adapter(path)
    shapes = weight_shapes(found)
    for layer in manifest["layers"]:
        shape, wanted = shapes.get(layer["name"]), (layer["out_features"], layer["in_features"])
        if shape != wanted:
            raise ValueError(
                f"the adapter adapts {layer['name']} of shape {wanted}, the base in {found} has "
                f"{shape or 'no such weight'}; wanted the base it was trained on; name it with --base"
            )
    run = manifest_of(path)
    digest = json.loads(run.read_text()).get("inputs", {}).get(str(recorded)) if run else None
    if digest not in (None, content(found)):
        raise ValueError(
            f"the base in {found} is not the one that {run} records ({content(found)[:12]}, wanted {digest[:12]}); "
            "put the trained one back, or name it with --base"
        )
    return Model(name, path, "adapter", found)


@cache
def content(path: Path) -> str:
    """Digest of a checkpoint; read once a process, since a base has many adapters and many gigabytes."""
    return tree_digest(path)


@cache
def weight_shapes(checkpoint: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every stored weight, from the files' heads. Raises ValueError for a file that is cut."""
    return {name: tensor.shape for name, tensor in shards.read_tensors(checkpoint).items()}


def adapter_room(models: list[Model], base: Path, serving: str = "exact", rank: int = 0) -> dict:
    """Options of `rft.serving.engine.open_engine` for an engine over `base` that is to serve its adapters exactly.

    One engine for base and adapters: a zero adapter then is the base, bit for bit. Empty where nothing is served so.

    Args:
        models: all that are evaluated.
        base: the checkpoint.
        serving: `exact`, `merged` or `native`.
        rank: least room, without adapters too.
    """
    adapters = [model.path for model in models if model.base == base and is_adapter(model.path)]
    layers = [layer for path in adapters for layer in read_adapter(path)[0]["layers"]]
    rank = max([rank, *(layer["rank"] for layer in layers)])
    if serving != "exact" or not rank:
        return {}
    modules = {*ATTENTION, *(layer["name"].split(".")[-2] for layer in layers)}
    return {"lora_rank": rank, "lora_modules": sorted(modules)}
