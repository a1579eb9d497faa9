#!/usr/bin/env bash
# Train the tiny gpt-oss with GRPO through the whole patched stack, and measure what it learned.
# Hardware: 2 CPU cores, 12 GB; a GPU is left alone. Time: see README.md. Everything it needs is installed on the first
# launch.
#
#   bash launch/train_grpo_tiny.sh [OPENRLHF OPTION …]        SEED=0 RUN_DIR=runs/… DRY_RUN=1 RFT_STACK=gpu (two GPUs)
#
# Acceptance: 'after - before >= 0.15' (greedy_pass@1 on 256 held-out sums, mean over seeds 0, 1, 2)
export RFT_STACK="${RFT_STACK:-cpu}" # on any machine
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

tiny_experiment sums reward_func_em.py 512 "$@"
