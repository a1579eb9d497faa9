# shellcheck shell=bash
# A run's directory: a new one, one whose run is resumed, one that is started once more. Sourced by launch/common.sh.

RESUMES=0 # 1 where RUN_DIR holds the run to resume
TRAINER=grpo # whose command a launch makes: grpo_command, or launch/sft.sh's
AGAIN=0   # 1 where what an earlier start left in RUN_DIR is set aside, to begin once more

# begin_run [OPENRLHF OPTION…]: read the training command, and make the run directory. A run owns its directory: one that
# holds anything but launch/slurm.sh's slurm/ is refused, unless its run is to be resumed, or its start failed before training.
begin_run() {
    "${TRAINER}_command" "$@"
    [[ $DRY_RUN != 1 ]] || return 0
    judge_run_dir
    ((RESUMES || AGAIN)) || require_free_places
    claim_run_dir
    if ((AGAIN)); then
        set_aside
        require_free_places
        "${TRAINER}_command" "$@" # without --load_checkpoint
    fi
    # Ray's workers inherit all four; the first marks every process of this run, see rft.runs.memory.
    export RFT_RUN_DIR="$RUN_DIR" RFT_LAUNCHER="$EXP_NAME" METRICS_LOG_DIR SAMPLES_LOG_DIR SPIKE_LOG_PATH
    if ((!RESUMES)); then
        each_place link_place
        record_start "$@"
    fi
    # shellcheck disable=SC2034  # read by on_exit
    RUN_IS_OURS=1
    start_guard
}

# judge_run_dir: set RESUMES or AGAIN where RUN_DIR holds a run that allows it; refuse what else it holds.
judge_run_dir() {
    [[ -e $RUN_DIR ]] || return 0
    if [[ -d $RUN_DIR && -z "$(find "$RUN_DIR" -mindepth 1 -maxdepth 1 ! -name slurm -print -quit)" ]]; then return 0; fi
    if [[ -n ${OPTION[load_checkpoint]} && -f $RUN_DIR/run.json ]]; then
        require_ended
        each_place require_same_place
        if [[ -f ${OPTION[ckpt_path]}/_actor/latest ]] || ((MEASURE_ONLY)); then
            RESUMES=1
            return 0
        fi
        ! grep -q -- --disable_ds_ckpt "$RUN_DIR/run.json" || die "the run kept nothing to resume from" \
            "it was started with RESUMABLE=0, and saved adapters only" "optimizer and data position, which it left out" \
            "start a new run in another RUN_DIR"
        AGAIN=1
    elif [[ -f $RUN_DIR/launch.json ]] && ! has_begun; then
        require_ended
        AGAIN=1
    else
        die "the run directory is taken" "$RUN_DIR, not empty" "a new or empty folder" \
            "choose another one with RUN_DIR=…, or move this one away; to resume its run: \
$(print_command bash launch/resume.sh "$RUN_DIR")"
    fi
}

# has_begun: RUN_DIR's run has trained, or saved anything.
has_begun() {
    local place
    [[ ! -s $RUN_DIR/training_metrics.jsonl ]] || return 0
    for place in "$ADAPTER" "$CHECKPOINTS" "$RUN_DIR/adapter" "$RUN_DIR/checkpoints"; do
        # best.json is there after the first evaluation, of the base model.
        [[ -z $(find -L "$place" -type f ! -name best.json -print -quit 2>/dev/null) ]] || return 0
    done
    return 1
}

# require_ended: no process of RUN_DIR's run is left.
require_ended() {
    local left
    left=$(left_of_run | paste -sd ' ')
    [[ -z $left ]] || die "the run has not ended" "processes $left of $RUN_DIR" "none" "wait for them, or stop them"
}

# claim_run_dir: by a lock that this launch and what it starts hold as long as they live; two launches never share one.
claim_run_dir() {
    local lock
    { mkdir -p -- "$RUN_DIR" && exec {lock}>>"$RUN_DIR/phases.jsonl"; } ||
        die "cannot make the run directory" "$RUN_DIR, see above" "a folder that this launch can make" "choose another RUN_DIR"
    flock -n "$lock" || die "the run directory is taken" "$RUN_DIR, which another launch is using" \
        "one launch at a time" "choose another one with RUN_DIR=…, or wait for that launch"
    printf 'run directory: %s\n' "$RUN_DIR"
}

# set_aside: move what an earlier start left into start_1, start_2, …, also what link_place's links lead to.
set_aside() {
    local n=1 entry aside names
    mapfile -t names < <(each_place name_of_place)
    while [[ -e $RUN_DIR/start_$n ]]; do n=$((n + 1)); done
    aside=$RUN_DIR/start_$n
    mkdir -- "$aside"
    for entry in "$RUN_DIR"/*; do
        case ${entry##*/} in
        start_* | slurm) ;;
        launch.json) cp -- "$entry" "$aside/" ;; # by which a start that fails now knows the directory again
        phases.jsonl)                            # its inode is the lock
            cp -- "$entry" "$aside/"
            : >"$entry"
            ;;
        *)
            if [[ -L $entry && " ${names[*]} " == *" ${entry##*/} "* ]]; then
                if [[ -e $entry ]]; then mv -- "$(readlink -f -- "$entry")" "$aside/${entry##*/}"; fi
                rm -- "$entry"
            else
                mv -- "$entry" "$aside/"
            fi
            ;;
        esac
    done
    printf 'no complete checkpoint is there, so the training begins anew; the earlier start is kept in %s\n' "$aside"
}

# record_start [OPENRLHF OPTION…]: into launch.json, what launch/resume.sh repeats.
record_start() {
    RFT_STACK=$STACK_GIVEN python_module rft.runs.launched "$RUN_DIR" "$0" "$@"
}

# require_unchanged MANIFEST-COMMAND…: a resumed run goes on with the code, model and data of its start.
require_unchanged() {
    local more=()
    if ((ALLOW_CHANGED)); then more=(--warn); fi
    run "$@" --unchanged "${more[@]}" -- "${COMMAND[@]}"
}

# keep_former: what a resumed run was started with before, as run_1.json and command_1.sh, run_2.json, …
keep_former() {
    local n=1
    [[ -e $RUN_DIR/run.json ]] || return 0
    while [[ -e $RUN_DIR/run_$n.json ]]; do n=$((n + 1)); done
    cp -- "$RUN_DIR/run.json" "$RUN_DIR/run_$n.json"
    cp -- "$RUN_DIR/command.sh" "$RUN_DIR/command_$n.sh"
}
