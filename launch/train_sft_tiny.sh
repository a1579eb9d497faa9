#!/usr/bin/env bash
# Teach the tiny gpt-oss a format that it lacks, by supervised training through the patched stack, and measure it: a base
# that boxes none of its answers, 512 rows in its own two habits of adding, all of them boxed.
# Hardware: 2 CPU cores, 12 GB; a GPU is left alone. Time: see docs/sft.md.
#
#   bash launch/train_sft_tiny.sh [OPENRLHF OPTION …]            SEED=0 RUN_DIR=runs/… DRY_RUN=1
#   SFT_RUN=RUN bash launch/train_grpo_tiny.sh                   then GRPO, from its adapter, on its problems
#
# Acceptance: 'after - before >= 0.50' (share of boxed answers, 256 held-out sums, format check 'go to GRPO' after)
export RFT_STACK="${RFT_STACK:-cpu}" # on any machine
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

tiny_supervised_experiment "$@"
