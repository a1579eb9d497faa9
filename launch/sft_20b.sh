#!/usr/bin/env bash
# Supervised training of an adapter of gpt-oss-20b, for a policy whose answers lack the format: first ask whether yours
# does, .venv/bin/python -m rft.runs.format_check --model DIR. The adapter has the shape of GRPO's by RECIPE (a26, tuned),
# the prompts have GRPO's reasoning effort (tuned: EFFORT=medium or low).
# Hardware: one GPU of 80 GB; SFT_RANKS=N: N of one machine. Time: an H100 learns from 26,000 tokens a second, an epoch of
# 5,000 rows of 750 tokens in about 2.5 minutes; the checks before and after take 3 to 4 minutes, and the time of their
# 73 answers of up to 8,192 tokens each.
#
#   RECIPE=tuned bash launch/sft_20b.sh [OPENRLHF OPTION …]  SEED=42 RUN_DIR=runs/… DATA_ROOT=… MODEL=… DRY_RUN=1
#   RECIPE=tuned bash launch/train_grpo_20b.sh --init_adapter RUN/adapter        then
#
# Acceptance: 'after >= 0.95' (share of boxed answers, MATH level 4 and 5, format check 'go to GRPO' after)
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
use models/gpt-oss-20b
use_adapter_of_recipe
use tasks/sft
SFT_ARGS+=(
    --max_len 4096
    --max_epochs 1
    --train_batch_size 64
    --micro_train_tokens 16384 # at which dequantising the experts is 4% of the time (computed)
    --learning_rate 1e-4 # usual for adapters; not measured on gpt-oss
    --eval_steps 20
    --save_steps 20
)
supervised_experiment "$@"
