# shellcheck shell=bash disable=SC2154,SC2164  # nodes.sh stands before it, with strict mode
# The job of a run: what its nodes need, then its launcher; then, where the run has not ended, the job that goes on with it.

UNFINISHED=11 # status of a launcher that has saved, and stopped because it was asked to
LAUNCHER_PID="" NEXT_JOB="" ASKED="" ASKED_AT=0

# note WORD…: into jobs.log, which `status` reads.
note() { printf '%s %s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$SLURM_JOB_ID" "$*" >>"$JOB_FOLDER/jobs.log"; }

# submit_next: the job that goes on with this run once this one is gone; at most MAX_JOB_CHAINS in a row.
submit_next() {
    local count=1
    [[ -z $NEXT_JOB && ! -e $JOB_FOLDER/cancelled ]] || return 0
    [[ ! -e $JOB_FOLDER/chain ]] || count=$(<"$JOB_FOLDER/chain")
    if ((count >= MAX_JOB_CHAINS)); then
        say "no job follows: this was number $count of MAX_JOB_CHAINS=$MAX_JOB_CHAINS; bash launch/slurm.sh resume $RUN_DIR"
        return 0
    fi
    if NEXT_JOB=$(sbatch --parsable --dependency="afterany:$SLURM_JOB_ID" "$JOB_FOLDER/job.sh"); then
        NEXT_JOB=${NEXT_JOB%%;*} # behind it may stand the cluster's name
        printf '%d\n' $((count + 1)) >"$JOB_FOLDER/chain"
        say "job $NEXT_JOB goes on with this run"
        note submits "$NEXT_JOB"
    else
        say "this node may not submit jobs, see above; from a login node: bash launch/slurm.sh resume $RUN_DIR"
    fi
}

# on_limit: the time limit is near, or `cancel` asks. The next job is submitted before the saving, which may take too long.
on_limit() {
    [[ -z $ASKED ]] || return 0
    ASKED=stop ASKED_AT=$SECONDS
    if [[ -e $JOB_FOLDER/cancelled ]]; then say "asked to save and end"; else say "the time limit is near: saving"; fi
    submit_next
    [[ -z $LAUNCHER_PID ]] || kill -USR1 "$LAUNCHER_PID" 2>/dev/null || true
}

# on_end: scancel, or the time limit itself, STOP_SECONDS after on_limit; KillWait of slurm.conf is left. The limit takes no
# job back that on_limit has submitted, because saving may take too long.
on_end() {
    if [[ $ASKED == stop ]] && ((SECONDS - ASKED_AT >= STOP_SECONDS - 5)); then
        ASKED=limit
    else
        ASKED=end
    fi
    say "ended by Slurm (SIGTERM)"
    [[ -z $LAUNCHER_PID ]] || kill -TERM "$LAUNCHER_PID" 2>/dev/null || true
}

# launch: the run's launcher, for the first time or once more, until it ends or a step that it needs does. Its status.
launch() {
    local status=0 command=(bash "$LAUNCHER" "${OPTIONS[@]}")
    [[ -z $ASKED ]] || return "$UNFINISHED" # asked while the nodes were prepared
    if [[ -e $RUN_DIR/launch.json ]]; then command=(bash "$ROOT/launch/resume.sh" "$RUN_DIR"); fi
    say "${command[*]}"
    "${command[@]}" </dev/null &
    LAUNCHER_PID=$!
    while kill -0 "$LAUNCHER_PID" 2>/dev/null; do
        if step_ended; then
            kill -TERM "$LAUNCHER_PID" 2>/dev/null || true
            break
        fi
        sleep 1 &
        wait "$!" || true # a signal ends it, and is handled
    done
    while kill -0 "$LAUNCHER_PID" 2>/dev/null; do wait "$LAUNCHER_PID" || true; done
    wait "$LAUNCHER_PID" || status=$?
    LAUNCHER_PID=""
    if [[ $ASKED == stop ]] && ((status == 128 + 10)); then status=$UNFINISHED; fi # SIGUSR1 came before it could trap it
    [[ -z $LOST ]] || status=1 # whatever was saved before, a lost node is a failure
    return "$status"
}

# on_exit: say how the job ended, and take back the next one where nothing is left to do.
on_exit() {
    local status=$? why
    trap - EXIT
    trap '' USR1 TERM
    set +e
    case $status in
    0) why="the run is complete" ;;
    10) why="a rule stopped the run after saving, see decisions.jsonl" ;;
    "$UNFINISHED") why="stopped and saved, not finished" ;;
    *) why=${LOST:-failed, see $JOB_FOLDER/$SLURM_JOB_ID.log} ;;
    esac
    if ((status == UNFINISHED)) && [[ $ASKED != end ]]; then
        submit_next
    elif [[ $ASKED == limit && -z $LOST ]] && ((status > 128)); then
        why="the time limit came before it had saved"
    elif [[ -n $NEXT_JOB ]]; then
        scancel "$NEXT_JOB" && note withdraws "$NEXT_JOB"
    fi
    note ended "$status" "$why"
    say "job $SLURM_JOB_ID ends with status $status: $why"
    end_steps
    exit "$status"
}

main() {
    local word
    trap on_exit EXIT
    trap on_limit USR1
    trap on_end TERM
    know_nodes
    note began "${HOSTS[*]}"
    say "job $SLURM_JOB_ID of $RUN_DIR on ${HOSTS[*]}"
    [[ ! -e $JOB_FOLDER/cancelled ]] || exit "$UNFINISHED"
    cluster_environment
    # A launcher may have given one a value of its own, which it recorded: a resume goes by the record.
    [[ ! -e $RUN_DIR/launch.json ]] || GIVEN=()
    for word in "${GIVEN[@]}" "${GIVEN_AGAIN[@]}"; do export "${word?}"; done
    export RUN_DIR
    cd -- "$START_DIR"
    if [[ -n $RETRIEVER_HOST ]]; then begin_retriever "$RETRIEVER_HOST"; fi
    if ((${#TRAIN_HOSTS[@]} > 1)) || [[ $RETRIEVER_PLACE == ray ]]; then
        begin_ray
        wait_for_ray
    fi
    if [[ -n $RETRIEVER_HOST ]]; then wait_for_retriever; fi
    launch
}

main
