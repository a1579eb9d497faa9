#!/usr/bin/env bash
# GRPO on gpt-oss-120b by a recipe of launch/recipes. RECIPE=a26 (the default): the first recipe's counterpart, 250
# rollouts of 64 samples. RECIPE=tuned: what published runs agree on, 100 rollouts of 1,024 samples, one update each.
# Hardware: two GPUs of 141 GB or more of them (docs/running.md). Time: not measured.
#
#   RECIPE=tuned bash launch/train_grpo_120b.sh [OPENRLHF OPTION …]  SEED=42 RUN_DIR=runs/… DATA_ROOT=… MODEL=… DRY_RUN=1
#
# Acceptance: 'after - before >= 0.02' (greedy_pass@1, probe_set_1000_ood.jsonl, 95% interval of the difference above 0)
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
use models/gpt-oss-120b
use_recipe
use_cluster
use tasks/math
GRPO_ARGS+=(--prompt_data "$DATA_ROOT/sft_rl_pool.jsonl")
experiment "$@"
