"""Train the untrained tiny model through OpenRLHF's command line on a Ray cluster of its own: no warm start, no report.

python train_direct.py RUN_DIR CHECKPOINT [OPENRLHF OPTION …]     metrics go to RUN_DIR; RFT_RUN_DIR marks processes
"""

import json
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # for benchmarks, which is no installed package

from benchmarks.ray_head import ray_head  # noqa: E402
from rft.runs.memory import MARK  # noqa: E402

PROMPTS, BATCH, SAMPLES = 24, 8, 4
REWARD = '''
import torch

def reward_func(queries, prompts, labels):
    """About half of an untrained model's samples: those with an even number of characters."""
    return {"rewards": torch.tensor([float(len(query) % 2 == 0) for query in queries])}
'''


def preset(path: str) -> list[str]:
    """The options of a launcher preset."""
    names = {"models": "MODEL_ARGS", "clusters": "CLUSTER_ARGS"}[path.split("/")[0]]
    script = f'MODEL=model; source "{ROOT}/launch/{path}.env"; printf "%q " "${{{names}[@]}}"'
    return shlex.split(subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout)


def command(run_dir: Path, checkpoint: str, extra: list[str]) -> list[str]:
    """The training command: 8 prompts x 4 samples a step, one epoch of 3 steps; `extra` options win."""
    (run_dir / "reward.py").write_text(REWARD)
    problems = [{"input": [{"role": "user", "content": f"{n} + {n + 1} ="}], "label": "1"} for n in range(PROMPTS)]
    (run_dir / "prompts.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    options = {
        "--prompt_data": run_dir / "prompts.jsonl",
        "--input_key": "input",
        "--label_key": "label",
        "--remote_rm_url": run_dir / "reward.py",
        "--advantage_estimator": "group_norm",
        "--init_kl_coef": 0,
        "--entropy_loss_coef": 0,
        "--rollout_batch_size": BATCH,
        "--n_samples_per_prompt": SAMPLES,
        "--micro_rollout_batch_size": 16,
        "--train_batch_size": BATCH * SAMPLES,
        "--micro_train_batch_size": 16,
        "--generate_max_len": 24,
        "--actor_learning_rate": 3e-3,
        "--save_path": run_dir / "saved",
        "--ckpt_path": run_dir / "checkpoints",
        "--seed": 0,
    }
    words = [str(word) for pair in options.items() for word in pair]
    stock = [*preset("models/tiny"), *preset("clusters/cpu"), *words, "--apply_chat_template"]
    return ["openrlhf.cli.train_ppo_ray", *stock, "--pretrain", checkpoint, *extra]


def main(run_dir: str, checkpoint: str, *extra: str) -> None:
    place = Path(run_dir)
    place.mkdir(parents=True, exist_ok=True)
    os.environ.update({"METRICS_LOG_DIR": run_dir, "SAMPLES_LOG_DIR": str(place / "samples")})
    sys.argv = command(place, checkpoint, list(extra))
    with ray_head(place, logical_gpus=3) as address:
        import ray  # behind the environment that `benchmarks.ray_head` sets

        os.environ.update({"RAY_ADDRESS": address, MARK: run_dir})
        try:  # in this process: tests fork it from one that has made the imports
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
