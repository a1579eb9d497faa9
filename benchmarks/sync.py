"""LoRA sync from "optimizer stepped" to "all receipts compared": seconds by phase, bytes, bandwidth.

    .venv/bin/python -m benchmarks.sync --out DIR [--work DIR] [--case 20b 120b]     one H200, about two minutes a case
    .venv/bin/python -m benchmarks.sync --out DIR --cpu-tiny                         the same on a CPU

The real hook on both sides: `rft.hooks.lora_sync.sync` from a ZeRO-3 engine of one rank to one `LLMRayActor`. Each case
serves exactly; with `-merged` after its name, by `--lora_serving merged`. Before the clock runs, one update of 5e-7.
20b: complete bf16 trainer, checkpoint served as MXFP4, LoRA r=32. 120b: r=64, 36 layers, 128 experts; its bf16 trainer
(234 GB) does not fit, so the trainer holds the attention layers only, which is all that a sync reads; the engine holds
the complete MXFP4 model with dummy values. Each case has a process of its own and is kept when the other fails.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import ROOT, report
from benchmarks.checkpoint import ensure_checkpoint, shape_config
from benchmarks.ray_head import ray_head
from benchmarks.report import log
from rft.record.files import replace_json

NAME = "sync"
CASES = {
    "20b": {"shape": "20b", "rank": 32, "dummy": False, "trainer": "complete model", "gpu_share": 0.3},
    "120b": {"shape": "120b", "rank": 64, "dummy": True, "trainer": "attention layers", "gpu_share": 0.7},
    "tiny": {"shape": "tiny", "rank": 8, "dummy": False, "trainer": "complete model", "gpu_share": 0.3},
    "tiny-dummy": {"shape": "tiny", "rank": 8, "dummy": True, "trainer": "attention layers", "gpu_share": 0.3},
}
CASES = {name: {**case, "serving": "exact"} for name, case in CASES.items()} | {
    f"{name}-merged": {**case, "serving": "merged"} for name, case in CASES.items()
}
WARM_UP, MEASURED = 3, 20
LEARNING_RATE = 5e-7  # of the update whose kept share is measured before the syncs are timed


def start_engine(model: Path, dummy: bool, gpu_share: float, additional_config: dict):
    """One rollout engine as `train_ppo_ray --colocate_all_models` makes it, ready; with dummy weights where asked.

    `create_vllm_engines` cannot pass `load_format`, so the dummy engine is built from the same arguments here.
    """
    import ray
    from openrlhf.trainer.ray.vllm_engine import LLMRayActor, create_vllm_engines
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([{"GPU": 1, "CPU": 1}], strategy="PACK")
    ray.get(group.ready())
    if dummy:
        engine = LLMRayActor.options(
            num_cpus=0.2,
            num_gpus=0.2,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True),
        ).remote(
            model=str(model),
            load_format="dummy",
            enforce_eager=True,
            worker_extension_cls="openrlhf.trainer.ray.vllm_worker_wrap.WorkerWrap",
            tensor_parallel_size=1,
            seed=0,
            distributed_executor_backend="uni",
            max_model_len=512,
            enable_prefix_caching=True,
            dtype="bfloat16",
            gpu_memory_utilization=gpu_share,
            num_gpus=0.2,
            additional_config=additional_config,
        )
    else:
        # engines, TP size, model, seed, full determinism, prefix caching, eager, context, placement, share
        places = (1, 1, str(model), 0, False, True, True, 512, group, gpu_share)
        [engine] = create_vllm_engines(*places, additional_config=additional_config)
    ray.get(engine.get_num_unfinished_requests.remote())
    return engine


def measure(case: dict, work: Path, publish: Callable[[dict], None]) -> None:
    """Sync `WARM_UP + MEASURED` times; `publish(result)` after every measured one. Runs in a process of its own."""
    import ray

    from benchmarks import trainer
    from benchmarks.checkpoint import PROJECTIONS
    from rft.hooks import engine_options
    from rft.hooks.lora_sync import lora_layers, sync

    shape = case["shape"]
    model = ensure_checkpoint(work / (f"{shape}-config" if case["dummy"] else shape), shape, weights=not case["dummy"])
    ray.init(logging_level="ERROR")
    log("engine: begin")
    room = {"rank": case["rank"], "modules": list(PROJECTIONS)} if case["serving"] == "exact" else {}
    engine = start_engine(model, case["dummy"], case["gpu_share"], engine_options.build("float32", **room))
    log("engine: ready")
    config = shape_config(shape)
    base = trainer.attention_only(config) if case["trainer"] == "attention layers" else trainer.whole_model(config)
    actor = trainer.zero3_engine(trainer.with_lora(base, case["rank"]))
    layers = lora_layers(actor.module)
    # Under ZeRO-3 a partitioned parameter keeps its size in ds_numel.
    trainable = [p for p in actor.module.parameters() if p.requires_grad]
    log(f"trainer: ready, {len(layers)} adapted layers")
    result = {
        "adapted_layers": len(layers),
        "bytes": sum(p.ds_numel * p.element_size() for p in trainable),
        "syncs": [],
    }
    trainer.step_adapter(actor, 0, first_update=LEARNING_RATE)
    first = sync(actor, [engine], case["serving"])
    shares = ("sync_kept_share", "sync_output_kept_share", "adapter_output_kept_share")
    result["first_update"] = {name: first[name] for name in shares if name in first}
    log(f"one update of {LEARNING_RATE:g}: {result['first_update']}")
    for step in range(1, WARM_UP + MEASURED + 1):
        trainer.step_adapter(actor, step)
        begin = time.perf_counter()
        metrics = sync(actor, [engine], case["serving"])
        seconds = time.perf_counter() - begin
        if step <= WARM_UP:
            log(f"warm-up sync {step}: {seconds:.4f} s")
            continue
        assert metrics["sync_adapter_version"] == step and metrics["sync_layers"] == len(layers)
        result["syncs"].append({"end_to_end_seconds": seconds} | metrics)
        publish(result)
    log(f"{MEASURED} syncs, median {statistics.median(s['end_to_end_seconds'] for s in result['syncs']):.4f} s")


def run_case(name: str, work: Path, found: dict, address: str, limit_seconds: float) -> None:
    """Measure one case in a child process; what it wrote is in `found` even where it fails."""
    result = work / f"{NAME}-{name}-{os.getpid()}.json"
    words = [sys.executable, "-m", "benchmarks.sync", "--child", name, "--work", str(work), "--out", str(result)]
    child = subprocess.Popen(words, cwd=ROOT, env=os.environ | {"RAY_ADDRESS": address})
    try:
        status = child.wait(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        status = f"none within {limit_seconds:.0f} s"
    if result.is_file():
        found |= json.loads(result.read_text())
    if status != 0:
        raise RuntimeError(f"the case's process ended with exit status {status}; its messages are above")


def body(record: dict) -> str:
    """The markdown below the header: a table a case."""
    tables = []
    for name, found in record["parts"].items():
        if not found.get("syncs"):
            continue
        rows = []
        for key in found["syncs"][0]:
            if key.endswith("seconds"):
                values = [1e3 * sync[key] for sync in found["syncs"]]
                rows.append((f"`{key}`", statistics.median(values), min(values), max(values)))
        megabytes, median = found["bytes"] / 1e6, rows[0][1]
        case = CASES[name]
        layers = f"{found['adapted_layers']} adapted matrices, r={case['rank']}, {megabytes:.3g} MB"
        weights = "dummy MXFP4 weights" if case["dummy"] else "MXFP4 checkpoint"
        text = (
            f"**{name}**: {layers}; trainer holds: {case['trainer']}; engine: {weights}; {len(found['syncs'])} syncs "
            f"after {WARM_UP} to warm up; {megabytes / median:.3g} GB/s end to end; serving: {case['serving']}; of one "
            f"update of {LEARNING_RATE:g} kept: "
            + ", ".join(f"{key} {value:.3g}" for key, value in found["first_update"].items())
        )
        tables += [text, report.markdown(("phase", "median ms", "min ms", "max ms"), rows)]
    return "\n\n".join(tables) or "No sync was measured."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--work", type=Path, default=Path("/tmp/rft-bench"), help="folder of checkpoints")
    parser.add_argument("--case", nargs="+", choices=CASES, default=["20b", "120b"])
    parser.add_argument("--cpu-tiny", action="store_true", help="the cases tiny and tiny-dummy")
    parser.add_argument("--case-seconds", type=float, default=280, help="a case that takes longer is ended")
    parser.add_argument("--child", choices=CASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    out, work = args.out.resolve(), args.work.resolve()
    if args.child:

        def keep(result: dict) -> None:
            replace_json(out, result)

        measure(CASES[args.child], work, keep)
        return 0
    cases = ["tiny", "tiny-dummy"] if args.cpu_tiny else args.case
    work.mkdir(parents=True, exist_ok=True)
    record = report.describe() | {"cases": {name: CASES[name] for name in cases}}

    def publish() -> None:
        report.save(out, NAME, record, body(record))

    for name in cases:
        # A cluster of its own, whose end leaves no engine of this case on the device.
        run_dir = work / f"{NAME}-{name}-{os.getpid()}"
        with report.part(record, name, publish) as found, ray_head(run_dir) as address:
            run_case(name, work, found, address, args.case_seconds)
    log(f"results: {out / NAME}.json, {out / NAME}.md")
    return report.exit_code(record)


if __name__ == "__main__":
    sys.exit(main())
