# shellcheck shell=bash disable=SC2034  # read by presets
# A complete run of a tiny task, which makes its problems and its model. Sourced by launch/common.sh.

# tiny_experiment TASK REWARD PROMPTS [OPENRLHF OPTION…]: as `experiment`, on a CPU. TASK is one of rft/tiny/tasks.py, REWARD
# a file of rewards/ or agents/, PROMPTS are trained on once, 32 a step.
tiny_experiment() {
    local task=$1 prompts=$3
    REWARD=$2
    shift 3
    no_recipe "a tiny task"
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
    if ((!RESUMES)); then
        phase "data"
        run "$PYTHON" "$ROOT/data/prepare_arithmetic.py" --out "$DATA" --task "$task" --train "$prompts"
        start_retriever # of a corpus that is there now
        phase "warm start"
        run "$PYTHON" -m rft.tiny.warmstart --task "$task" --data "$DATA/warm.jsonl" --seed "$SEED" \
            --cache "$CACHE_ROOT/warmstart" --out "$MODEL"
    fi
    train_and_measure "$@"
}
