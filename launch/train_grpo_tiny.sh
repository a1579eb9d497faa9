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

choose_seed 0
MODEL="$RUN_DIR/model"
DATA="$RUN_DIR/data"
use models/tiny
use clusters/cpu
GRPO_ARGS=(
    --prompt_data "$DATA/train.jsonl"
    --input_key input
    --label_key label
    --apply_chat_template
    --remote_rm_url "$ROOT/rewards/reward_func_em.py"
    --advantage_estimator group_norm
    --init_kl_coef 0
    --entropy_loss_coef 0 # logs the entropy, adds nothing to the loss
    --rollout_batch_size 32
    --n_samples_per_prompt 8
    --micro_rollout_batch_size 64
    --train_batch_size 256
    --micro_train_batch_size 64
    --actor_learning_rate 3e-3
    --eval_dataset "$DATA/heldout.jsonl"
    --eval_steps 4
    --eval_temperature 0
    --eval_n_samples_per_prompt 1
    --save_path "$ADAPTER"
    --ckpt_path "$CHECKPOINTS"
    --seed "$SEED"
)
if ((RESUMABLE)); then
    GRPO_ARGS+=(--save_steps 4) # with each evaluation
else
    GRPO_ARGS+=(--disable_ds_ckpt)
fi
RUN_INPUTS=("$MODEL" "$DATA")

begin_run "$@"
phase "set-up"
setup_env
start_ray "$LOGICAL_GPUS" # comes up while the model and the data are made
measure_memory
if ((!RESUMES)); then
    phase "data"
    run "$PYTHON" "$ROOT/data/prepare_arithmetic.py" --out "$DATA"
    phase "warm start"
    run "$PYTHON" -m rft.tiny.warmstart --data "$DATA/warm.jsonl" --seed "$SEED" --cache "$CACHE_ROOT/warmstart" --out "$MODEL"
fi
train_and_measure "$@"
