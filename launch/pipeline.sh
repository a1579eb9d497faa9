# shellcheck shell=bash disable=SC2034  # TRAINS is read by launch/ending.sh
# A run from its checks to its report. Sourced by launch/common.sh.

STOPPED_BY_RULE=10             # status of a training that an early-stopping rule ended, after saving
COMMAND=()                     # the training command
declare -A OPTION=()           # its options as the trainer reads them: defaults filled in; a flag is 1, or empty
MANIFEST=()                    # the command that writes run.json of the training command behind it, or compares
PREPARED=0                     # 1 once prepare_grpo has passed it
TRAIN_STATUS=0                  # of the training
MEASURE_STATUS=0               # of the first part of measure_after that failed
EVAL_DATASET=${EVAL_DATASET:-} # problems asked before and after the training; where empty, those of evaluations in the loop
EVAL_REFERENCE=${EVAL_REFERENCE:-} # of eval_posthoc's probe: cpu, cuda or none; where empty, its default
RUN_INPUTS=()                  # model and data whose hashes go into run.json; those of the command where it is empty

# experiment [OPENRLHF OPTION…]: a complete run on a model and data that exist. What is missing is reported in seconds.
experiment() {
    grpo_command "$@"
    require_gpus
    require_inputs
    require_share
    begin_run "$@"
    phase "set-up"
    setup_env
    start_code_server
    start_retriever
    start_ray "${LOGICAL_GPUS:-}"
    measure_memory
    train_and_measure "$@"
}

# train_and_measure [OPENRLHF OPTION…]: checks, the policy before, GRPO, the policy after, the report. A run that a rule
# stopped has saved what it learned: it is measured and reported like any other, and the launch ends with its status.
# With MEASURE_ONLY=1, of launch/resume.sh, a run that was trained to its end is only measured.
train_and_measure() {
    if ((MEASURE_ONLY)); then
        TRAIN_STATUS=$(<"$RUN_DIR/trained")
        wait_for_code_server
        wait_for_retriever
    else
        phase "preflight"
        prepare_grpo "$@"
        phase "baseline evaluation"
        evaluate before "${OPTION[init_adapter]:-${OPTION[pretrain]}}"
        phase "grpo"
        launch_grpo "$@"
    fi
    stop_ray
    ((TRAIN_STATUS == 0)) ||
        printf 'stopped by a rule after saving, see decisions.jsonl; what was saved is measured now\n'
    measure_after
    ((TRAIN_STATUS == 0)) || exit "$TRAIN_STATUS"
    ((MEASURE_STATUS == 0)) || exit "$MEASURE_STATUS"
}

measure_after() {
    phase "evaluation"
    go_on_after "the evaluation of the adapter" evaluate after "${OPTION[save_path]}"
    go_on_after "the evaluation of the best adapter" measure_best
    phase "report"
    go_on_after "the summary" run "$PYTHON" -m rft.runs.summary "$RUN_DIR"
    go_on_after "the report" run "$PYTHON" -m rft.runs.report "$RUN_DIR"
}

# measure_best: the same accuracy of the adapter that was best in the loop, where it is another one than the last.
measure_best() {
    local best
    [[ $DRY_RUN != 1 ]] || return 0
    best=$("$PYTHON" -m rft.runs.best "$RUN_DIR") || return
    [[ -z $best ]] || evaluate best "$best"
}

# go_on_after WHAT CMD ARG…: a failure is reported and kept in MEASURE_STATUS; training is paid for, and the report
# shows what there is of it.
go_on_after() {
    local status=0
    "${@:2}" || status=$?
    ((status)) || return 0
    printf 'error: %s failed with exit status %d, see above\n' "$1" "$status" >&2
    ((MEASURE_STATUS)) || MEASURE_STATUS=$status
}

# evaluate NAME MODEL: greedy accuracy, at the lengths of the rollouts, to evals/NAME.json.
evaluate() {
    local file datasets=() more=()
    while read -r file; do datasets+=(--dataset "$file"); done < <(names_in "${EVAL_DATASET:-${OPTION[eval_dataset]}}")
    more+=(--lora-rank "${OPTION[lora_rank]}") # the same engine before and after
    [[ ${OPTION[lora_serving]} != merged ]] || more+=(--serve merged)
    [[ ${OPTION[head_dtype]} != model ]] || more+=(--head-dtype model)
    [[ ${OPTION[agent_func_path]} != *agent_func_search.py ]] || more+=(--agent search)
    [[ -z $EVAL_REFERENCE ]] || more+=(--reference "$EVAL_REFERENCE")
    [[ -z ${OPTION[reasoning_effort]} ]] || more+=(--reasoning-effort "${OPTION[reasoning_effort]}")
    [[ -z ${OPTION[trust_remote_code]} ]] || more+=(--trust-remote-code)
    run "$PYTHON" "$ROOT/eval/eval_posthoc.py" --model "$1=$2" "${datasets[@]}" --mode "greedy_pass@1" "${more[@]}" \
        --max-prompt-tokens "${OPTION[prompt_max_len]}" --max-tokens "${OPTION[generate_max_len]}" \
        --tensor-parallel-size "${OPTION[vllm_tensor_parallel_size]}" --cache "$CACHE_ROOT/evals" --output "$RUN_DIR/evals/$1.json"
}

# launch_grpo [OPENRLHF OPTION…]: train, after the checks. Log: train.log. A rule's stop is no failure: see TRAIN_STATUS.
launch_grpo() {
    ((PREPARED)) || prepare_grpo "$@"
    train
}

# train: run COMMAND. Log: train.log.
train() {
    TRAIN_STATUS=0
    [[ $DRY_RUN == 1 ]] || rm -f -- "$RUN_DIR/trained" "$RUN_DIR/save_and_stop"
    TRAINS=1
    run_logged "$RUN_DIR/train.log" "${COMMAND[@]}" || TRAIN_STATUS=$?
    TRAINS=0
    ((TRAIN_STATUS == 0 || TRAIN_STATUS == STOPPED_BY_RULE)) || return "$TRAIN_STATUS"
    [[ $DRY_RUN == 1 ]] || printf '%d\n' "$TRAIN_STATUS" >"$RUN_DIR/trained"
}

# prepare_grpo [OPENRLHF OPTION…]: what training reads, the preflight page, command.sh and run.json.
prepare_grpo() {
    grpo_command "$@"
    PREPARED=1
    [[ $DRY_RUN != 1 ]] || return 0
    run "$PYTHON" -m rft.runs.inputs "${COMMAND[@]}"
    local files
    if ((${#RUN_INPUTS[@]})); then
        mapfile -t files < <(names_in "$EVAL_DATASET")
    else
        RUN_INPUTS=("${OPTION[pretrain]}")
        mapfile -t files < <(names_in "${OPTION[prompt_data]}" "${OPTION[eval_dataset]}" "$EVAL_DATASET")
    fi
    know_inputs "${RUN_INPUTS[@]}" "${files[@]}"
    wait_for_ray
    check_nodes "${RUN_INPUTS[@]}" "${files[@]}"
    wait_for_code_server
    wait_for_retriever
    check_and_record "$@"
}

# know_inputs FILE…: what run.json hashes; a resumed run's are those of its start.
know_inputs() {
    MANIFEST=("$PYTHON" -m rft.runs.manifest "$RUN_DIR" "${@/#/--input=}")
    if ((RESUMES)); then require_unchanged "${MANIFEST[@]}"; fi
}

# check_and_record [OPENRLHF OPTION…]: the preflight page, then command.sh and run.json, behind know_inputs.
check_and_record() {
    preflight
    keep_former
    record_start "$@"
    print_command "${COMMAND[@]}" >"$RUN_DIR/command.sh"
    run "${MANIFEST[@]}" -- "${COMMAND[@]}"
}

preflight() {
    if [[ $PREFLIGHT == 0 ]]; then
        printf 'warning: PREFLIGHT=0, so nothing is checked before this training\n' >&2
        return 0
    fi
    local files
    mapfile -t files < <(names_in "$EVAL_DATASET")
    run "$PYTHON" -m rft.runs.preflight --run-dir "$RUN_DIR" "${files[@]/#/--also-evaluated=}" -- "${COMMAND[@]}"
    if [[ $PREFLIGHT == only ]]; then
        printf 'PREFLIGHT=only: nothing is trained; the same command without it takes %s again\n' "$RUN_DIR"
        exit 0
    fi
}

# grpo_command [OPENRLHF OPTION…]: make COMMAND of the presets and the user's options, which come last and win, and read
# it into OPTION. What rft refuses ends the launch here.
grpo_command() {
    read_command "$PYTHON" -m openrlhf.cli.train_ppo_ray "${MODEL_ARGS[@]}" "${CLUSTER_ARGS[@]}" "${GRPO_ARGS[@]}" "$@" || return 0
    if share_gpu; then grpo_command "$@"; fi
}

# read_command WORD…: make them COMMAND, and read it into OPTION. Status 1 where it is COMMAND already.
read_command() {
    local former="${COMMAND[*]@Q}" fields i word words=()
    for word in "$@"; do
        [[ $word == --load_checkpoint ]] && ((AGAIN)) || words+=("$word") # there is none to load
    done
    COMMAND=("${words[@]}")
    [[ ${COMMAND[*]@Q} != "$former" ]] || return 1
    # Before the set-up another Python reads a copy of the trainer's options.
    mapfile -d '' -t fields < <(python_module rft.options.command "${COMMAND[@]}")
    wait "$!" || exit
    for ((i = 0; i < ${#fields[@]}; i += 2)); do OPTION[${fields[i]}]=${fields[i + 1]}; done
}

# names_in VALUE…: one a line of the names that a value lists with commas between, as OpenRLHF takes problem sets.
names_in() {
    printf '%s\n' "${@//,/$'\n'}" | sed 's/^ *//; s/ *$//; /^$/d'
}

# require_gpus: as many devices as COMMAND places actors and engines on; those of a cluster at RAY_ADDRESS are its own.
require_gpus() {
    [[ $DRY_RUN != 1 && -z ${RAY_ADDRESS:-} ]] || return 0
    local found=0 needed=${OPTION[gpus]} fewer="--actor_num_gpus_per_node, --vllm_num_engines"
    local cluster=" a Ray cluster (RAY_ADDRESS=host:port)," tiny=launch/train_grpo_tiny.sh
    if [[ $TRAINER == sft ]]; then fewer="SFT_RANKS" cluster="" tiny=launch/train_sft_tiny.sh; fi
    [[ $STACK_KIND == cpu ]] || found=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ') || true # 0 without any
    if [[ -n ${RETRIEVER_GPUS:-} && -n ${CUDA_VISIBLE_DEVICES:-} ]]; then
        found=$(tr -cd , <<<"$CUDA_VISIBLE_DEVICES" | wc -c) found=$((found + 1)) # without the retriever's
    fi
    ((found >= needed)) || die "too few GPUs" "$found here (RFT_STACK=$RFT_STACK)" "$needed" \
        "use such a machine,$cluster or fewer by $fewer; without a GPU: bash $tiny"
}

# require_inputs: the model and the problem files of COMMAND, each with the command that makes it.
require_inputs() {
    [[ $DRY_RUN != 1 ]] || return 0
    local model file files bin=".venv/bin"
    [[ -x $PYTHON ]] || bin="make setup && $bin"
    model=${OPTION[pretrain]}
    [[ -f $model/config.json ]] || die "no model" "no config.json in $model" "a gpt-oss checkpoint directory" \
        "MODEL=DIR names another; $bin/hf download ${MODEL_ID:-REPOSITORY} --exclude 'original/*' 'metal/*' \
--local-dir $model"
    mapfile -t files < <(names_in "${OPTION[prompt_data]}" "${OPTION[eval_dataset]}" "$EVAL_DATASET")
    for file in "${files[@]}"; do
        [[ $file != *.jsonl || -f $file ]] || die "no problem file" "$file" "problems as JSON lines" \
            "$(maker_of "$file" "$bin")"
    done
    require_corpus
}

# maker_of FILE BIN: how a problem file comes about; programs are in BIN.
maker_of() {
    case $1 in
    */code/mbpp_*.jsonl | */code/humaneval.jsonl)
        printf 'DATA_ROOT=DIR names another folder; %s/python data/prepare_code_data.py --out %q (docs/data.md)' \
            "$2" "${1%/code/*}"
        ;;
    */search/*.jsonl)
        printf 'DATA_ROOT=DIR names another folder; %s/python data/prepare_search_data.py --out %q (docs/data.md)' \
            "$2" "${1%/search/*}"
        ;;
    */aime_eval.jsonl | */probe_set_*.jsonl | */sft_*.jsonl | */trained.jsonl)
        printf 'DATA_ROOT=DIR names another folder; %s/python -m rft.data make --out %q (docs/data.md)' "$2" "${1%/*}"
        ;;
    *) printf 'correct the path, or write the file (docs/own_task.md)' ;;
    esac
}

# choose_seed DEFAULT: SEED, or the default.
choose_seed() {
    SEED="${SEED:-$1}"
    [[ $SEED =~ ^[0-9]+$ ]] || die "SEED is not a number" "SEED=$SEED" "0, 1, 2, …" "unset SEED"
}
