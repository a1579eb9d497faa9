#!/usr/bin/env bash
# GRPO on gpt-oss-20b: train_grpo_20b.sh with a clip range of 0.1 (attempt 27 of docs/sources.md).
# Question: do spikes of the gradient norm come from extreme ratios, which a tighter clip range keeps out of the loss?
# Prediction: fewer steps with grad_norm above 50, ppo_clip_ratio about twice as large, the same or better probe.
#
#   bash launch/train_grpo_20b_a27.sh [OPENRLHF OPTION …]        environment: see train_grpo_20b.sh
#
# Acceptance: 'max(grad_norm) < 50 and after - before >= 0.03' (greedy_pass@1, probe_set_1000_ood.jsonl)
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
use models/gpt-oss-20b
use_fixed_recipe a26
use_cluster
use tasks/math
GRPO_ARGS+=(--prompt_data "$DATA_ROOT/sft_rl_pool.jsonl" --eps_clip 0.1)
experiment "$@"
