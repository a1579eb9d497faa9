# shellcheck shell=bash disable=SC2034  # read by presets
# A complete run of a tiny task, which makes its problems and its model. Sourced by launch/common.sh.

# tiny_experiment TASK REWARD PROMPTS [OPENRLHF OPTION…]: as `experiment`, on a CPU. TASK is one of rft/tiny/tasks.py, REWARD
# a file of rewards/ or agents/, PROMPTS are trained on once, 32 a step.
tiny_experiment() {
    local task=$1 prompts=$3
    REWARD=$2
    shift 3
    no_recipe "a tiny task"
    require_sft_run
    use tasks/tiny
    use models/tiny
    use clusters/cpu
    begin_run "$@"
    phase "set-up"
    setup_env
    start_code_server
    start_retriever
    start_ray "$LOGICAL_GPUS" # comes up while the model and the data are made
    measure_memory
    if ((!RESUMES)) && [[ -z ${SFT_RUN:-} ]]; then
        phase "data"
        run "$PYTHON" "$ROOT/data/prepare_arithmetic.py" --out "$DATA" --task "$task" --train "$prompts"
        start_retriever # of a corpus that is there now
        phase "warm start"
        run "$PYTHON" -m rft.tiny.warmstart --task "$task" --data "$DATA/warm.jsonl" --seed "$SEED" \
            --cache "$CACHE_ROOT/warmstart" --out "$MODEL"
    fi
    train_and_measure "$@"
}

# require_sft_run: SFT_RUN, where it is set, is a run of train_sft_tiny.sh with model, problems and adapter.
require_sft_run() {
    [[ -n ${SFT_RUN:-} ]] || return 0
    SFT_RUN=$(absolute "$SFT_RUN")
    [[ -f $SFT_RUN/adapter/adapter_config.json && -f $SFT_RUN/data/train.jsonl ]] || die "no run to go on from" \
        "SFT_RUN=$SFT_RUN" "a run of train_sft_tiny.sh that has ended: model, data, adapter" \
        "bash launch/train_sft_tiny.sh, then its run directory"
}

# tiny_supervised_experiment [OPENRLHF OPTION…]: as `supervised_experiment`, on a CPU, with a model that boxes no answer.
tiny_supervised_experiment() {
    TRAINER=sft
    no_recipe "a tiny task"
    choose_seed 0
    MODEL="$RUN_DIR/model"
    DATA="$RUN_DIR/data"
    SFT_ROWS=$DATA
    MODEL_ARGS=(--pretrain "$MODEL" --param_dtype bf16 --lora_rank 8 --lora_alpha 16 --target_modules q_proj k_proj v_proj o_proj)
    use tasks/sft
    EVAL_DATASET=$DATA/heldout.jsonl FORMAT_PROBLEMS=256 FORMAT_TOKENS=64
    SFT_ARGS+=(
        --max_len 160 --max_epochs 2 --train_batch_size 32 --micro_train_batch_size 16 --learning_rate 3e-3
        --eval_steps 8 --save_steps 8
    )
    begin_run "$@"
    phase "set-up"
    setup_env
    measure_memory
    if ((!RESUMES)); then
        phase "data"
        run "$PYTHON" "$ROOT/data/prepare_arithmetic.py" --out "$DATA" --task unboxed
        phase "warm start"
        run "$PYTHON" -m rft.tiny.warmstart --task unboxed --data "$DATA/warm.jsonl" --seed "$SEED" \
            --cache "$CACHE_ROOT/warmstart" --out "$MODEL"
    fi
    train_supervised "$@"
}
