#!/usr/bin/env bash
# GRPO on gpt-oss-20b: the first recipe, clip range 0.2 (attempt 26 of docs/sources.md).
# Hardware: 8 GPUs of 80 GB, 170 GB of host memory. Time: 150 rollouts; 10-13 minutes each on 8 H100 (docs/sources.md).
#
#   bash launch/train_grpo_20b.sh [OPENRLHF OPTION …]        SEED=42 RUN_DIR=runs/… DATA_ROOT=… MODEL=… DRY_RUN=1
#
# Acceptance: 'after - before >= 0.03' (greedy_pass@1, probe_set_1000_ood.jsonl, 95% interval of the difference above 0)
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
use models/gpt-oss-20b
use_cluster
use tasks/math
GRPO_ARGS+=(
    --prompt_data "$DATA_ROOT/sft_rl_pool.jsonl"
    # 1,200 updates, so that 5% of warm-up are 60 and the 20th has a third of the learning rate. All of the pool would
    # warm up for 1,250 updates; 20 passes over a few prompts fit them and lose the out-of-distribution probe.
    --max_samples 2400
    --num_episodes 1
    --eps_clip 0.2
)
experiment "$@"
