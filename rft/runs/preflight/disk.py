"""What this run will write, against the space of each place it writes to."""

import os
import shutil
from argparse import Namespace
from pathlib import Path

from rft.runs.preflight.batches import rollouts, samples
from rft.runs.preflight.lines import GO, NO_GO, WARN, Line, gigabytes
from rft.runs.preflight.model import trained_parameters

BYTES_A_TOKEN = 6  # of decoded text in JSON, generously
BYTES_A_SAMPLE = 1000  # the other fields of a sample's line
PACKED = 0.5  # of it after gzip, generously
BYTES_A_STEP = 5000  # a line of training_metrics.jsonl
LOG_BYTES_A_STEP = 50_000  # train.log: progress bars, metrics, a sample
OPTIMIZER_BYTES = 12  # a trained parameter: fp32 master copy and Adam's two moments
FULL = 0.95  # Ray stops writing objects to a file system above this


def check_disk(args: Namespace, config: dict, run_dir: Path, prompts: int, eval_prompts: int) -> list[Line]:
    """One line a file system: bytes that this run will write to it, and bytes free."""
    needs: dict[int, list[tuple[str, Path, int]]] = {}
    for name, path, size in planned(args, config, run_dir, prompts, eval_prompts):
        place = existing_parent(path)
        needs.setdefault(place.stat().st_dev, []).append((name, place, size))
    result = []
    for entries in needs.values():
        place, total = entries[0][1], sum(size for _, _, size in entries)
        certain = sum(size for name, _, size in entries if name != "samples")  # those are counted at full length
        usage = shutil.disk_usage(place)
        what = ", ".join(f"{name} {gigabytes(size)}" for name, _, size in entries if size)
        measured = f"{gigabytes(total)} to write at {place} ({what}), {gigabytes(usage.free)} free"
        repair = "--max_ckpt_num 1, --samples_keep_gb 1, or --save_path and --ckpt_path on another disk"
        if certain > usage.free:
            result.append(Line("disk", NO_GO, measured, repair))
        elif total > usage.free:
            result.append(Line("disk", WARN, f"{measured}: enough only for shorter responses", repair))
        elif (usage.used + total) / (usage.used + usage.free) > FULL:
            result.append(Line("disk", WARN, f"{measured}: above {FULL:.0%} Ray stops spilling objects", repair))
        else:
            result.append(Line("disk", GO, measured))
    unwritable = [p for e in needs.values() for _, p, _ in e if not os.access(p, os.W_OK)]
    return result + [Line("disk", NO_GO, f"{p} cannot be written to", f"chmod u+w {p}") for p in set(unwritable)]


def planned(
    args: Namespace, config: dict, run_dir: Path, prompts: int, eval_prompts: int
) -> list[tuple[str, Path, int]]:
    """(what, where, bytes) of everything a run leaves.

    A checkpoint more than is kept, since it is written first; for the same reason two of the best adapter.
    """
    trained, weights = trained_parameters(args, config), weight_bytes(args, config)
    steps = rollouts(args, prompts)
    saves = steps // args.save_steps if args.save_steps > 0 else 0
    kept = min(saves, args.max_ckpt_num + 1)
    full = 0 if args.disable_ds_ckpt else kept * (trained * (2 + OPTIMIZER_BYTES))
    light = kept * weights if args.save_hf_ckpt else 0
    evaluations = steps // args.eval_steps if args.eval_steps > 0 and args.eval_dataset else 0
    best = min(evaluations, 2) * weights if args.lora_rank > 0 and not args.async_train else 0
    tokens = args.prompt_max_len + args.generate_max_len
    sample = (tokens * BYTES_A_TOKEN + BYTES_A_SAMPLE) * PACKED
    written = -(-steps // args.samples_every) if args.samples_every else 0
    texts = written * samples(args) + evaluations * eval_prompts * args.eval_n_samples_per_prompt
    kept_samples = round(min(texts * sample, args.samples_keep_gb * 1e9))
    return [
        ("final weights", Path(args.save_path), weights),
        ("checkpoints", Path(args.ckpt_path), full + light + best),
        ("samples", Path(os.environ.get("SAMPLES_LOG_DIR") or run_dir), kept_samples),
        ("metrics", Path(os.environ.get("METRICS_LOG_DIR") or run_dir), steps * BYTES_A_STEP),
        ("log", run_dir, steps * LOG_BYTES_A_STEP),
    ]


def weight_bytes(args: Namespace, config: dict) -> int:
    """What one save writes: bf16 adapter (or model), and the tokenizer."""
    tokenizer = Path(args.pretrain, "tokenizer.json")
    return 2 * trained_parameters(args, config) + (tokenizer.stat().st_size if tokenizer.is_file() else 0)


def existing_parent(path: Path) -> Path:
    """The nearest folder above `path` that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path
