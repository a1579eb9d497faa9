#!/usr/bin/env bash
# Arm A of an A/B pair on gpt-oss-20b: clip range 0.2. Arm B, train_grpo_20b_a28b.sh, differs in nothing else.
# Question: does a clip range of 0.1 tame spikes without slowing learning? 400 prompts once: 25 rollouts, 200 updates.
# Prediction for this arm: it learns, with steps whose grad_norm is above 50.
#
#   SEED=42 bash launch/train_grpo_20b_a28a.sh [OPENRLHF OPTION …]        one SEED for both arms: same prompts, same seeds
#
# Acceptance: 'after - before > 0' (greedy_pass@1, probe_set_1000_ood.jsonl), or the pair says nothing about learning
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
use models/gpt-oss-20b
use_fixed_recipe a26
use_cluster
use tasks/math
GRPO_ARGS+=(--prompt_data "$DATA_ROOT/sft_rl_pool_400.jsonl" --max_samples 400 --eps_clip 0.2)
experiment "$@"
