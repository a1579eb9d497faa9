#!/usr/bin/env bash
# GRPO on gpt-oss-20b with Python programs of MBPP, judged by a code server of the run (docs/code_rewards.md), by a recipe
# of launch/recipes: RECIPE=a26 (the default) or tuned, as in train_grpo_20b.sh.
# Hardware: one GPU of 80 GB or more of them (docs/running.md). Time: not measured.
#
#   RECIPE=tuned bash launch/train_grpo_20b_code.sh [OPENRLHF OPTION …]  SEED=42 RUN_DIR=runs/… DATA_ROOT=… MODEL=… DRY_RUN=1
#
# Acceptance: 'after - before >= 0.03' (greedy_pass@1, mbpp_test.jsonl, 95% interval of the difference above 0)
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
use models/gpt-oss-20b
use_recipe
use_cluster
use tasks/code
GRPO_ARGS+=(--prompt_data "$DATA_ROOT/code/mbpp_train.jsonl" --num_episodes 9) # 279 problems: about the rollouts of a26
experiment "$@"
