#!/usr/bin/env bash
# Train the tiny gpt-oss with GRPO to write Python functions that pass their tests: the whole patched stack, with a code
# server that runs what it writes (docs/code_rewards.md), and measure what it learned.
# Hardware: 2 CPU cores, 12 GB; a GPU is left alone. Time: see README.md. Everything it needs is installed on the first
# launch.
#
#   bash launch/train_grpo_tiny_code.sh [OPENRLHF OPTION …]        SEED=0 RUN_DIR=runs/… DRY_RUN=1
#
# Acceptance: 'after - before >= 0.15' (greedy_pass@1 on 256 held-out functions, mean over seeds 0, 1, 2)
export RFT_STACK="${RFT_STACK:-cpu}" # on any machine
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

use_code_server
tiny_experiment code reward_func_code.py 256 "$@"
