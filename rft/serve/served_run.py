"""The `vllm serve` command that answers as a run's adapter was trained and evaluated."""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from rft.evals.models import Model, adapter_room, checked
from rft.hooks import chat_date, engine_options, loopback
from rft.options import recorded, remote_code
from rft.options.command import recorded as recorded_options
from rft.record.adapters import CHAIN
from rft.runs.best import find_best
from rft.runs.preflight import harmony

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ServedRun(NamedTuple):
    """A run, and the adapter of it that is served."""

    run: Path
    model: Model
    options: argparse.Namespace  # of the training
    chain: list[dict]  # of adapters that the training began from, `rft.record.adapters.chain_of`; empty for a new one

    @property
    def adapter(self) -> Path:
        """Its directory, absolute."""
        return self.model.path

    @property
    def base(self) -> Path:
        """The base checkpoint's directory, absolute."""
        return self.model.base

    @property
    def is_last(self) -> bool:
        """Whether it is the adapter of the training's end."""
        return self.adapter == (self.run / "adapter").resolve()


def read_run(run: Path, best: bool = False, base: Path | None = None) -> ServedRun:
    """What to serve of a run: its last adapter, or the best one by the evaluations in its loop.

    Args:
        run: the run's directory.
        best: the adapter that `best.json` names.
        base: the base checkpoint, where it has moved since.

    Raises:
        ValueError: there is no such adapter, or it does not fit its base.
    """
    manifest = recorded.read_manifest(run)
    options = recorded_options(manifest["command"])
    adapter = best_adapter(run) if best else run / "adapter"
    if not (adapter / "adapter_config.json").is_file():
        raise ValueError(
            f"found no adapter in {adapter}; wanted one that the training saved at its end, or with --save_steps; name "
            "another run, or take the best one with --best"
        )
    remote_code.settle(bool(options.trust_remote_code))
    (model,) = checked([(run.name, adapter.resolve())], base)
    return ServedRun(run, model, options, manifest.get(CHAIN) or [])


def best_adapter(run: Path) -> Path:
    """The adapter that `best.json` names. Raises ValueError where it names none."""
    best = find_best(run)
    if best is None or best.adapter is None:
        why = "names none: the best evaluation was that of the base" if best else "is not there"
        raise ValueError(f"found no best adapter: {run / 'best.json'} {why}; wanted one; leave --best out")
    return best.adapter


def served_name(served: ServedRun) -> str:
    """What clients call the model: the launcher and the run, and `best` where it is that adapter."""
    return f"{served.run.parent.name}/{served.run.name}{'' if served.is_last else '-best'}"


def serve_command(served: ServedRun, host: str, port: int, on_cpu: bool, more: list[str]) -> list[str]:
    """`vllm serve …`, with the adapter in the engine from the start, computed as in training.

    Args:
        served: see `read_run`.
        host, port: where the server listens.
        on_cpu: without CUDA graphs and compilation.
        more: options of `vllm serve`, last.

    Raises:
        ValueError: other machines would reach the server, and there is no key.
    """
    if host not in LOOPBACK and not os.environ.get("VLLM_API_KEY"):
        raise ValueError(
            f"found --host {host} and no VLLM_API_KEY; wanted a key where other machines reach the server; set "
            "VLLM_API_KEY, or leave --host out"
        )
    options = served.options
    room = adapter_room([served.model], served.base, options.lora_serving)
    engine = engine_options.build(
        options.head_dtype, room.get("lora_rank", 0), room.get("lora_modules"), str(served.adapter)
    )
    command = [str(Path(sys.executable).parent / "vllm"), "serve", str(served.base)]
    command += ["--served-model-name", served_name(served), "--host", host, "--port", str(port)]
    command += ["--dtype", "bfloat16", "--max-model-len", str(options.prompt_max_len + options.generate_max_len)]
    command += ["--tensor-parallel-size", str(options.vllm_tensor_parallel_size)]
    command += ["--additional-config", json.dumps(engine)]
    if options.trust_remote_code:
        command.append("--trust-remote-code")
    return command + ["--enforce-eager"] * on_cpu + more


def environment() -> dict[str, str]:
    """Variables of the server beyond this process's own: its ranks meet on the loopback. For the chat endpoint, the day
    in its prompts and, where it lies on this machine, Harmony's vocabulary, which vLLM else asks the network for."""
    found = {"CHAT_DATE": os.environ.get("CHAT_DATE") or chat_date.DEFAULT, **loopback.THIS_MACHINE}
    if not harmony.vocabulary_given() and harmony.vocabulary_present():
        folder = Path(sys.prefix, "share", "harmony")
        if not (folder / harmony.MERGES).is_file():
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as partial:
                harmony.unpack_vocabulary(partial).replace(folder / harmony.MERGES)
        found["TIKTOKEN_ENCODINGS_BASE"] = str(folder)
    return found
