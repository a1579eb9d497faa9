#!/usr/bin/env bash
# GRPO on gpt-oss-120b, the actor's parameters in host memory.
# Hardware: 8 GPUs of 80 GB, 255 GB of host memory. Time: 250 rollouts of 64 samples; not measured.
#
#   bash launch/train_grpo_120b.sh [OPENRLHF OPTION …]        SEED=42 RUN_DIR=runs/… DATA_ROOT=… MODEL=… DRY_RUN=1
#
# Acceptance: 'after - before >= 0.02' (greedy_pass@1, probe_set_1000_ood.jsonl, 95% interval of the difference above 0)
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
use models/gpt-oss-120b
use_cluster
use tasks/math
GRPO_ARGS+=(
    --prompt_data "$DATA_ROOT/sft_rl_pool.jsonl"
    --max_samples 2000 # 2,000 updates, 60 of them warm-up: the 20th has a third of the learning rate
    --num_episodes 1
    --eps_clip 0.1
)
experiment "$@"
