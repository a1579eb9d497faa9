#!/usr/bin/env bash
# GRPO on gpt-oss-20b by a recipe of launch/recipes. RECIPE=a26 (the default): the first recipe, clip range 0.2 (attempt
# 26 of docs/sources.md), 150 rollouts, 1,200 updates. RECIPE=tuned: what published runs agree on, 100 rollouts and updates.
# Hardware: one GPU of 80 GB or more of them (docs/running.md). Time: not measured.
#
#   RECIPE=tuned bash launch/train_grpo_20b.sh [OPENRLHF OPTION …]  SEED=42 RUN_DIR=runs/… DATA_ROOT=… MODEL=… DRY_RUN=1
#
# Acceptance: 'after - before >= 0.03' (greedy_pass@1, probe_set_1000_ood.jsonl, 95% interval of the difference above 0)
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
use models/gpt-oss-20b
use_recipe
use_cluster
use tasks/math
GRPO_ARGS+=(--prompt_data "$DATA_ROOT/sft_rl_pool.jsonl")
experiment "$@"
