# shellcheck shell=bash disable=SC2034  # read by launch/start.sh and the others
# A supervised training on this machine, between two checks of the format. Sourced by launch/common.sh.

SFT_RANKS=${SFT_RANKS:-1} # processes, each with a GPU of its own
SFT_ARGS=()               # of openrlhf.cli.train_sft, behind MODEL_ARGS
FORMAT_PROBLEMS="${FORMAT_PROBLEMS:-73}" # where each answer has its box, as many say so
FORMAT_TOKENS="${FORMAT_TOKENS:-8192}"   # of an answer

# supervised_experiment [OPENRLHF OPTION…]: a complete supervised run on a model and rows that exist.
supervised_experiment() {
    TRAINER=sft
    sft_command "$@"
    require_gpus
    require_rows
    begin_run "$@"
    phase "set-up"
    setup_env
    measure_memory
    train_supervised "$@"
}

# sft_command [OPENRLHF OPTION…]: COMMAND and OPTION, as grpo_command.
sft_command() {
    [[ $SFT_RANKS =~ ^[1-9][0-9]?$ ]] || die "SFT_RANKS is no number of GPUs" "SFT_RANKS=$SFT_RANKS" "1, 2, …, of this machine" \
        "unset SFT_RANKS, which means 1"
    [[ $EVAL_DATASET != *,* ]] || die "the format is checked on one file of problems" "EVAL_DATASET=$EVAL_DATASET" \
        "one JSONL file" "name one of them, or unset EVAL_DATASET"
    read_command "$PYTHON" -m rft.runs.ranks "$SFT_RANKS" openrlhf.cli.train_sft "${MODEL_ARGS[@]}" "${SFT_ARGS[@]}" "$@" || return 0
}

# train_supervised [OPENRLHF OPTION…]: preflight, the format before, SFT, the format after, the table. With MEASURE_ONLY=1, of
# launch/resume.sh, only what comes behind the training; a failure there is reported, and ends the launch behind the report.
train_supervised() {
    if ((!MEASURE_ONLY)); then
        phase "preflight"
        prepare_sft "$@"
        phase "format before"
        check_format before "${OPTION[init_adapter]:-${OPTION[pretrain]}}"
        phase "sft"
        train
    fi
    phase "format after"
    go_on_after "the format check of the adapter" check_format after "${OPTION[save_path]}"
    phase "report"
    go_on_after "the summary" run "$PYTHON" -m rft.runs.sft_summary "$RUN_DIR"
    go_on_after "the report" run "$PYTHON" -m rft.runs.report "$RUN_DIR"
    ((MEASURE_STATUS == 0)) || exit "$MEASURE_STATUS"
}

# prepare_sft [OPENRLHF OPTION…]: the preflight page, command.sh and run.json, as prepare_grpo.
prepare_sft() {
    sft_command "$@"
    [[ $DRY_RUN != 1 ]] || return 0
    local files
    mapfile -t files < <(names_in "${OPTION[pretrain]}" "${OPTION[dataset]}" "${OPTION[eval_dataset]}" "$EVAL_DATASET")
    know_inputs "${files[@]}"
    check_and_record "$@"
}

# check_format NAME MODEL: to evals/format_NAME.json, with the prompts that are trained on. Its verdict is no failure. By
# DATA_ROOT it knows the default file, of which it asks MATH's problems alone, as without a launcher.
check_format() {
    local status=0
    run env DATA_ROOT="$DATA_ROOT" "$PYTHON" -m rft.runs.format_check --model "$2" --data "$EVAL_DATASET" --n "$FORMAT_PROBLEMS" \
        --max-tokens "$FORMAT_TOKENS" --reasoning-effort "${OPTION[reasoning_effort]:-own}" --cache "$CACHE_ROOT/evals" \
        --output "$RUN_DIR/evals/format_$1.json" || status=$?
    ((status == 0 || status == 1 || status == 3)) || return "$status"
}

# require_rows: the model, the rows and the problems of the format check, each with the command that makes it.
require_rows() {
    [[ $DRY_RUN != 1 ]] || return 0
    OPTION["prompt_data"]=${OPTION[dataset]}
    require_inputs
}
