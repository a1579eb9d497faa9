"""`launch.json`: launcher, options and environment of a run's last start, which launch/resume.sh repeats.

    python3 -m rft.runs.launched RUN_DIR LAUNCHER [OPTION …]        called by launch/start.sh

Standard library only: it is written before the set-up.
"""

import os
import re
import sys
from pathlib import Path

from rft.hooks.environment import AGENT
from rft.record.files import replace_json

FILE = "launch.json"
# What a launcher and what it starts read, and nothing else: an environment holds keys. Not the conditions of one start
# (RAY_ADDRESS, CODE_SERVER_URL and _PORT, RETRIEVER_URL, _PORT and _HOST, CUDA_VISIBLE_DEVICES, STALL_LIMIT, PREFLIGHT,
# DRY_RUN), which may be others at the next.
PATHS = ("MODEL", "MODEL_ROOT", "DATA_ROOT", "CACHE_ROOT", "OUTPUT_ROOT", "CKPT_ROOT")
PATHS += ("METRICS_LOG_DIR", "SAMPLES_LOG_DIR", "SPIKE_LOG_PATH", "CORPUS", "INDEX_DIR", "SFT_RUN", "SFT_ROWS")
NAMES = (*PATHS, "RECIPE", "EFFORT", "CLUSTER", "RFT_STACK", "SEED", "RESUMABLE", "CHAT_DATE", "SFT_RANKS")
NAMES += ("FORMAT_PROBLEMS", "FORMAT_TOKENS", "EVAL_DATASET", "EVAL_REFERENCE", "START_CODE_SERVER")
NAMES += ("START_RETRIEVER", "RETRIEVER_INDEX", "RETRIEVER_KIND", "RETRIEVER_GPUS", "ENCODER", *AGENT)
NAMES += ("RFT_CODE_PASS_RATE_THRESHOLD", "RFT_CODE_SECONDS", "RFT_CODE_ALLOW_UNSAFE")
NAMES += ("SPIKE_GRAD_NORM", "WANDB_MODE", "WANDB_ENTITY", "WANDB_PROJECT", "WANDB_BASE_URL", "WANDB_DIR")
WANDB_KEY = re.compile(r"[0-9a-f]{40}|wandb_v\d_\w+")


def main() -> None:
    place, launcher, *options = sys.argv[1:]
    replace_json(Path(place, FILE), describe(place, launcher, options))


def describe(place: str, launcher: str, options: list[str]) -> dict:
    """The content of `launch.json`: `run_dir`, `launcher`, `cwd` (all absolute), `options`, `environment`.

    The launcher may have exported the places of metrics, samples and spikes by now; its defaults were not given.
    """
    given = {name: os.environ[name] for name in NAMES if os.environ.get(name)}
    defaults = {"METRICS_LOG_DIR": place, "SAMPLES_LOG_DIR": f"{place}/samples"}
    defaults["SPIKE_LOG_PATH"] = f"{given.get('METRICS_LOG_DIR', place)}/spike_log.jsonl"
    return {
        "run_dir": place,
        "launcher": os.path.abspath(launcher),
        "cwd": os.getcwd(),
        "options": [without_key(word) for word in options if word != "--load_checkpoint"],
        "environment": {name: value for name, value in given.items() if value != defaults.get(name)},
    }


def without_key(word: str) -> str:
    """A word of a command; true for a key of W&B, which its library has stored at the first start."""
    name, separator, value = word.rpartition("=")
    return f"{name}{separator}true" if WANDB_KEY.fullmatch(value) else word


if __name__ == "__main__":
    main()
