"""GRPO through OpenRLHF's own command line: seconds by phase, tokens a second, peak memory by process.

    .venv/bin/python -m benchmarks.whole_loop --out DIR [--work DIR] [OPENRLHF OPTION …]

One GPU: a random MXFP4 checkpoint of gpt-oss-20b's shape, everything colocated, MXFP4 kept in engine and actor, LoRA
r=32. `--actor eager` measures transformers' bf16 model instead, recomputed layer by layer under ZeRO-3. Fits in ten
minutes: at `--budget-seconds` the run is stopped, and keeps what it measured. `--shape 120b` takes two GPUs, one for
the actor; `--shape tiny` runs the same on a CPU. With `--kill-after N` every actor and engine gets SIGKILL after step
N, and the run is resumed from its last checkpoint. The results are written after every training step.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from benchmarks import ROOT, report
from benchmarks.checkpoint import PROJECTIONS, SHAPES, write_prompts
from benchmarks.gpu_memory import MemoryMeter
from benchmarks.ray_head import ray_head
from benchmarks.report import log
from rft.record.names import TRAINING_FILE
from rft.record.readers import read_jsonl
from rft.runs.memory import marked_processes

NAME = "whole_loop"
SIZES = {  # prompts, samples a prompt, tokens of a prompt, tokens of a response
    "20b": {"prompts": 16, "samples": 4, "prompt_tokens": 64, "response_tokens": 1024},
    "120b": {"prompts": 16, "samples": 4, "prompt_tokens": 64, "response_tokens": 1024},
    "tiny": {"prompts": 4, "samples": 4, "prompt_tokens": 8, "response_tokens": 24},
}
MICRO_BATCH = {"resident": 8, "eager": 2}  # sequences; of transformers' model no more fit beside an engine
RECOMPUTED = "--gradient_checkpointing --gradient_checkpointing_use_reentrant"  # the other kind fails under ZeRO-3
ACTORS = {"resident": "--zero_stage 2", "eager": f"--zero_stage 3 --attn_implementation eager {RECOMPUTED}"}
# Actor and engine of 120b do not fit one GPU of 141 GB together.
PLACES = {"120b": "--vllm_gpu_memory_utilization 0.85"}
SHARED = "--colocate_all_models --vllm_gpu_memory_utilization 0.3"
POLL_SECONDS = 0.5
LEARNING = 8  # steps from which on the page shows each
CURVE = ("global_step", "reward", "group_reward_std", "sync_output_kept_share", "grad_norm", "entropy_loss")
MEASURED = ("time_", "tokens_", "tflops_", "model_flops_", "memory_", "sync_", "mismatch_")  # metrics of the page


def command(model: Path, prompts: Path, work: Path, shape: str, actor: str, extra: list[str]) -> list[str]:
    """The training command; `extra` options come last and win."""
    size = SIZES[shape]
    batch, micro = size["prompts"] * size["samples"], MICRO_BATCH[actor]
    options = {
        "--pretrain": model,
        "--prompt_data": prompts,
        "--input_key": "input",
        "--label_key": "label",
        "--remote_rm_url": ROOT / "benchmarks" / "reward_token_parity.py",
        "--advantage_estimator": "group_norm",
        "--init_kl_coef": 0,
        "--rollout_batch_size": size["prompts"],
        "--n_samples_per_prompt": size["samples"],
        "--micro_rollout_batch_size": micro,
        "--train_batch_size": batch,
        "--micro_train_batch_size": micro,
        "--prompt_max_len": size["prompt_tokens"],
        "--generate_max_len": size["response_tokens"],
        "--actor_learning_rate": 1e-4,
        "--actor": actor,
        "--param_dtype": "bf16",
        "--lora_rank": 32,
        "--lora_alpha": 64,
        "--actor_num_nodes": 1,
        "--actor_num_gpus_per_node": 1,
        "--vllm_num_engines": 1,
        "--vllm_tensor_parallel_size": 1,
        "--save_path": work / "adapter",
        "--ckpt_path": work / "checkpoints",
    }
    flags = ["--apply_chat_template", *PLACES.get(shape, SHARED).split(), *ACTORS[actor].split()]
    flags += [] if torch.cuda.is_available() else ["--enforce_eager"]
    words = [
        sys.executable,
        "-m",
        "openrlhf.cli.train_ppo_ray",
        *(str(w) for pair in options.items() for w in pair),
        *flags,
    ]
    return [*words, "--target_modules", *PROJECTIONS, *extra]


def kill(run_dir: Path, driver: subprocess.Popen) -> int:
    """SIGKILL for the driver and every Ray actor of a run; how many processes that were."""
    pids = [driver.pid]
    for pid in marked_processes(str(run_dir)):
        with suppress(OSError):  # it ended meanwhile
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
                pids.append(pid)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(pids)


def run(
    words: list[str],
    logfile: Path,
    deadline: float,
    on_step: Callable[[dict], None],
    kill_after: int | None = None,
    run_dir: Path | None = None,
) -> str:
    """Train until the end or the deadline (of `time.monotonic`); `on_step(record)` for each metrics line as it comes.

    Args:
        kill_after: the step after which everything of `run_dir` gets SIGKILL.

    Returns how it ended. Raises RuntimeError, with the end of the log printed, when training fails.
    """
    metrics = Path(os.environ["METRICS_LOG_DIR"]) / TRAINING_FILE
    seen = len(read_jsonl(metrics)) if metrics.is_file() else 0
    with logfile.open("a") as output:
        process = subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    try:
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            records = read_jsonl(metrics)
            for record in records[seen:]:
                on_step(record)
            seen = len(records)
            if kill_after and records and records[-1]["global_step"] >= kill_after:
                return f"SIGKILL for {kill(run_dir, process)} processes after step {records[-1]['global_step']}"
    finally:
        ended_itself = process.poll() is not None
        process.terminate()  # its actors end with it, the head node's processes when the cluster stops
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for record in read_jsonl(metrics)[seen:]:
        on_step(record)
    if ended_itself and process.returncode:
        print(logfile.read_text(errors="replace")[-6000:], flush=True)
        raise RuntimeError(f"training ended with exit status {process.returncode}, its log is {logfile.name}")
    return "by itself" if ended_itself else "stopped at --budget-seconds"


def body(record: dict) -> str:
    """The markdown below the header."""
    loop = record["parts"].get("loop", {})
    steps = loop.get("steps", [])
    if not steps:
        return "No training step was finished."
    settings = ", ".join(f"{key} {value}" for key, value in record["settings"].items())
    rows = []
    for name in steps[0]:
        timed = name.startswith(MEASURED) or name == "seconds_since_last_step"
        later = [step[name] for step in steps[1:] if step.get(name) is not None]
        if timed or name in ("reward", "group_reward_std", "response_length", "ppo_kl", "ppo_clip_ratio", "grad_norm"):
            rows.append((f"`{name}`", steps[0][name], statistics.median(later) if later else None))
    memory = [(role, round(mib / 1024, 1)) for role, mib in loop.get("peak_mib", {}).items()]
    tables = [
        f"{len(steps)} steps, {loop['killed'] + ', then resumed, ' if 'killed' in loop else ''}"
        f"ended {loop.get('ended', 'not yet')}: {settings}",
        report.markdown(("metric", "first step", f"median of the {len(steps) - 1} after it"), rows),
    ]
    if len(steps) >= LEARNING:
        curve = [[step.get(name) for name in CURVE] for step in steps]
        tables.append(report.markdown([f"`{name}`" for name in CURVE], curve))
    return "\n\n".join(tables + ([report.markdown(("process", "peak GiB"), memory)] if memory else []))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.allow_abbrev = False  # what it does not know is an option of the trainer, and may look like one of these
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--work", type=Path, default=Path("/tmp/rft-bench"), help="folder of checkpoints")
    parser.add_argument("--shape", choices=[s for s in SHAPES if s in SIZES], default="20b")
    parser.add_argument("--actor", choices=list(ACTORS), default="resident")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--kill-after", type=int, metavar="STEP", help="kill the run after this step, and resume it")
    parser.add_argument("--budget-seconds", type=float, default=560, help="from the start of this command")
    args, extra = parser.parse_known_args()
    size, out, work = SIZES[args.shape], args.out.resolve(), args.work.resolve()
    record = report.describe() | {
        "settings": {"shape": args.shape, "actor": args.actor, **size, "lora_rank": 32, "options": extra}
    }

    def publish() -> None:
        report.save(out, NAME, record, body(record))

    with report.part(record, "checkpoint", publish):
        model = work / args.shape
        # In a process of its own, which takes its share of the GPU with it.
        make = [sys.executable, "-m", "benchmarks.checkpoint", "--shape", args.shape, "--out", str(model)]
        subprocess.run(make, cwd=ROOT, check=True)
        run_dir = work / f"{NAME}-{os.getpid()}"
        prompts = run_dir / "prompts.jsonl"
        write_prompts(prompts, args.steps * size["prompts"], size["prompt_tokens"], SHAPES[args.shape]["vocab_size"])
    if report.exit_code(record):
        return 1
    meter, last = MemoryMeter(), [time.monotonic()]
    with report.part(record, "loop", publish) as found:
        found["steps"] = []

        def on_step(step: dict) -> None:
            now = time.monotonic()
            step["seconds_since_last_step"], last[0] = now - last[0], now
            found["steps"].append(step)
            found["peak_mib"] = dict(meter.peaks)
            publish()
            log(f"step {step['global_step']} after {step['seconds_since_last_step']:.1f} s")

        meter.start()
        os.environ["METRICS_LOG_DIR"] = str(run_dir / "metrics")  # before Ray starts: its workers inherit it
        words = found["command"] = command(model, prompts, run_dir, args.shape, args.actor, extra)
        logfile, deadline = out / f"{NAME}.log", report.START + args.budget_seconds
        logfile.unlink(missing_ok=True)

        def launch(name: str, more: list[str], kill_after: int | None = None) -> None:
            with ray_head(run_dir) as address:
                os.environ["RAY_ADDRESS"] = address
                found[name] = run([*words, *more], logfile, deadline, on_step, kill_after, run_dir)

        try:
            if args.kill_after:
                launch("killed", ["--save_steps", "1"], args.kill_after)
                launch("ended", ["--save_steps", "1", "--load_checkpoint"])
            else:
                launch("ended", ["--disable_ds_ckpt"])
        finally:
            meter.stop()
            found["peak_mib"] = dict(meter.peaks)
    log(f"results: {out / NAME}.json, {out / NAME}.md")
    return report.exit_code(record)


if __name__ == "__main__":
    sys.exit(main())
