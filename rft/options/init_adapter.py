"""`--init_adapter`: which saved adapters a training can start from; standard library only, before Ray starts."""

import hashlib
import json
import os
from argparse import Namespace
from pathlib import Path

from rft import shards
from rft.options.actor import read_config
from rft.record import adapters
from rft.record.digest import tree_digest

# What the weight sync does not carry, by its name in adapter_config.json.
NOT_CARRIED = ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save", "layers_to_transform")
PREFIX, SUFFIXES = "base_model.model.", (".lora_A.weight", ".lora_B.weight")


def settle(args: Namespace) -> None:
    """The folder as an absolute path: a Ray worker need not have the driver's working directory."""
    if args.init_adapter:
        args.init_adapter = os.path.abspath(args.init_adapter)


def require_fitting(args: Namespace) -> None:
    """Refuse an adapter that this training would not continue as it is.

    Raises:
        ValueError: no adapter to train, another kind of folder, another rank, alpha, set of modules or base, tensors
            that are missing, or options that know no adapter before the first step.
    """
    if not args.init_adapter:
        return
    folder = Path(args.init_adapter)
    _require_possible(args)
    config = _config(folder)
    _require_same_shape(args, folder, config)
    _require_whole(folder, config["r"], args.pretrain)
    _require_same_base(folder, config.get("base_model_name_or_path"), args.pretrain)


def _refusal(what: str, found: object, wanted: object, repair: str) -> ValueError:
    return ValueError(f"--init_adapter: {what}\n  found:  {found}\n  wanted: {wanted}\n  repair: {repair}")


def _require_possible(args: Namespace) -> None:
    if args.lora_rank == 0:
        wanted = "an adapter to train"
        raise _refusal("full training has no adapter", "--lora_rank 0, the default", wanted, "--lora_rank R of it")
    if args.async_train:
        raise _refusal(
            "asynchronous training samples before the first sync",
            "--async_train",
            "an engine that has the adapter before its first rollout",
            "leave --async_train out",
        )
    if args.own_reference:
        raise _refusal(
            "a second model is the base, and the reference is base plus this adapter",
            "--separate_reference_model",
            "the actor with its reference adapter",
            "leave --separate_reference_model out",
        )


def _config(folder: Path) -> dict:
    """adapter_config.json of a PEFT folder. Raises ValueError for any other folder."""
    wanted = f"a PEFT folder: {adapters.CONFIG} and {adapters.WEIGHTS}"
    if not folder.is_dir():
        raise _refusal("no such folder", folder, wanted, "--init_adapter runs/NAME/adapter, or correct the path")
    if not (folder / adapters.CONFIG).is_file():
        if (folder / "config.json").is_file():
            found = f"a whole model in {folder} (config.json, no {adapters.CONFIG})"
            repair = f"the adapter that was merged into it; a bf16 model trains as --pretrain {folder} --actor eager"
            raise _refusal("a merged model is no adapter", found, wanted, repair)
        runs = [place for place in ("adapter", "saved") if (folder / place / adapters.CONFIG).is_file()]
        repair = f"--init_adapter {folder / runs[0]}" if runs else "--init_adapter runs/NAME/adapter"
        raise _refusal("not an adapter's folder", f"no {adapters.CONFIG} in {folder}", wanted, repair)
    try:
        config = json.loads((folder / adapters.CONFIG).read_text(encoding="utf-8"))
        plain = config.get("peft_type") == "LORA" and isinstance(config["r"], int) and config["lora_alpha"] > 0
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        found = f"{folder / adapters.CONFIG}: {type(error).__name__}: {error}"
        raise _refusal("the adapter's configuration cannot be read", found, wanted, "save it again") from None
    options = [name for name in NOT_CARRIED if config.get(name)]
    if not plain or options:
        found = f"peft_type {config.get('peft_type')}{', ' * bool(options)}{', '.join(options)}"
        raise _refusal("another kind of adapter", found, "plain LoRA", "train one with --lora_rank alone")
    return config


def _require_same_shape(args: Namespace, folder: Path, config: dict) -> None:
    """Rank, alpha and modules are the adapter's: with others it would be another policy, or none."""
    wanted = {"lora_rank": config["r"], "lora_alpha": config["lora_alpha"]}
    differing = [name for name, value in wanted.items() if getattr(args, name) != value]
    targets = [args.target_modules] if isinstance(args.target_modules, str) else args.target_modules
    saved = config.get("target_modules") or []
    saved = [saved] if isinstance(saved, str) else saved
    # `all-linear` and patterns are compared by the layers that they name, when the model is there (rft.hooks).
    names = all(target.replace("_", "").isalnum() for target in [*targets, *saved])
    if names and set(targets) != set(saved):
        differing.append("target_modules")
        wanted["target_modules"] = " ".join(sorted(saved))
    if differing:
        found = " ".join(
            f"--{name} {' '.join(targets) if name == 'target_modules' else getattr(args, name)}" for name in differing
        )
        options = " ".join(f"--{name} {wanted[name]}" for name in differing)
        raise _refusal("its shape is another one", found, f"{options}, as {folder / adapters.CONFIG} says", options)


def _require_whole(folder: Path, rank: int, pretrain: str) -> None:
    """A and B of every layer, of the rank; where the base is a folder, of its layers' shapes."""
    file = folder / adapters.WEIGHTS
    if not file.is_file():
        others = ", ".join(sorted(path.name for path in folder.glob("adapter_model*"))) or "nothing"
        repair = "save the adapter as safetensors (PEFT's save_pretrained does)"
        raise _refusal("the adapter's tensors are missing", f"{others} in {folder}", adapters.WEIGHTS, repair)
    try:
        shapes = {name: tensor.shape for name, tensor in shards.read_file(file).items()}
    except ValueError as error:
        repair = "copy or save the adapter again"
        raise _refusal("the adapter's tensors cannot be read", error, "a whole safetensors file", repair) from None
    layers = sorted({name.removesuffix(end) for name in shapes for end in SUFFIXES if name.endswith(end)})
    pairs = {layer: [shapes.get(layer + end, ()) for end in SUFFIXES] for layer in layers}
    bad = [layer for layer, (a, b) in pairs.items() if not (len(a) == len(b) == 2 and a[0] == b[1] == rank)]
    if bad or not layers or len(shapes) != 2 * len(layers):
        found = f"{bad[0]} with {pairs[bad[0]]}" if bad else f"{len(shapes)} tensors, {len(layers)} layers"
        wanted = f"lora_A ({rank}, in) and lora_B (out, {rank}) of each layer, and nothing else"
        raise _refusal("the adapter is not whole", found, wanted, "copy or save the adapter again")
    if not read_config(pretrain):
        return
    base = {name: tensor.shape for name, tensor in shards.read_tensors(Path(pretrain)).items()}
    for layer, (a, b) in pairs.items():
        name, shape = f"{layer.removeprefix(PREFIX)}.weight", (b[0], a[1])
        if base.get(name) != shape:
            found = f"{name} of shape {base.get(name, 'no such weight')} in {pretrain}"
            raise _refusal("it was trained on another base", found, f"{shape}", "--pretrain of the adapter's base")


def _require_same_base(folder: Path, recorded: str | None, pretrain: str) -> None:
    """The base that the adapter names: the same place or the same weights; where it is gone, what its run recorded."""
    place, here = Path(recorded or ""), Path(pretrain)
    if recorded == pretrain or (recorded and place.resolve() == here.resolve()):
        return
    digest = (adapters.run_of(folder).get("inputs") or {}).get(recorded)
    if recorded and read_config(recorded) and read_config(pretrain):
        same = sampled(place) == sampled(here)
    elif digest and here.is_dir():
        same = digest == tree_digest(here)
    else:
        same = bool(recorded) and place.name == here.name
    if not same:
        raise _refusal(
            "it was trained on another base",
            f"--pretrain {pretrain}",
            recorded or f"base_model_name_or_path in {folder / adapters.CONFIG}",
            f"--pretrain {recorded or 'its base'}; if the same weights have moved, write their place into "
            f"{folder / adapters.CONFIG}",
        )


def sampled(checkpoint: Path) -> str:
    """A digest of names, shapes and some bytes in the middle of every tensor of a checkpoint: milliseconds, where a
    digest of all bytes takes ten seconds for gpt-oss-20b. Training moves every matrix that it moves all over."""
    digest = hashlib.sha256()
    for name, tensor in sorted(shards.read_tensors(checkpoint).items()):
        size = tensor.end - tensor.begin
        with tensor.file.open("rb") as stream:
            stream.seek(tensor.begin + max(0, size - shards.SAMPLE) // 2)
            content = stream.read(min(size, shards.SAMPLE))
        digest.update(f"{name}\0{tensor.shape}{tensor.dtype}\0".encode() + content)
    return digest.hexdigest()
