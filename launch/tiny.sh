# shellcheck shell=bash disable=SC2034  # read by presets
# A complete run of a tiny task, which makes its problems and its model. Sourced by launch/common.sh.

# tiny_experiment TASK REWARD [OPENRLHF OPTION…]: TASK of rft/tiny/tasks.py, REWARD of rewards/. As `experiment`, on a CPU.
tiny_experiment() {
    TINY_TASK=$1 REWARD=$2
    shift 2
    [[ -z ${RECIPE:-}${EFFORT:-} ]] || die "the tiny launchers take no recipe" \
        "RECIPE=${RECIPE:-} EFFORT=${EFFORT:-}" "neither" \
        "unset RECIPE EFFORT; launch/train_grpo_20b.sh and its like take them"
    use tasks/tiny
    use models/tiny
    use clusters/cpu
    begin_run "$@"
    phase "set-up"
    setup_env
    start_code_server
    start_ray "$LOGICAL_GPUS" # comes up while the model and the data are made
    measure_memory
    if ((!RESUMES)); then
        phase "data"
        run "$PYTHON" "$ROOT/data/prepare_arithmetic.py" --task "$TINY_TASK" --out "$DATA"
        phase "warm start"
        run "$PYTHON" -m rft.tiny.warmstart --task "$TINY_TASK" --data "$DATA/warm.jsonl" --seed "$SEED" \
            --cache "$CACHE_ROOT/warmstart" --out "$MODEL"
    fi
    train_and_measure "$@"
}
