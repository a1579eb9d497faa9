# shellcheck shell=bash disable=SC2034  # read by the others
# How a launch ends: what it started ends with it, in order, by whatever signal. Sourced by launch/common.sh.

GUARD_PID=""       # rft.runs.guard, which ends what this launcher cannot
TEE_PID=""         # of run_logged
INTERRUPTED=""     # the signal that ends this launch
TRAINS=0           # 1 while the training runs, which can save and stop
WAIT_AGAIN=0       # 1 where a signal that ends nothing has interrupted a `wait`
SAVE_ASKED=""      # the signal by which this launch was asked to save and stop
SAVE_UNTIL=""      # when a launch that was asked by SIGTERM ends in any case, on bash's clock SECONDS
SAVED_AND_STOPPED=11
exec {TERMINAL}>&2 # for the last words: a signal may come where stderr leads to a log

# start_guard: what ends this run's processes where this launcher is ended by SIGKILL, and names those that stand still.
start_guard() {
    local reader ready
    reader=$(any_python) # the set-up, which makes .venv, is guarded too
    exec {ready}< <(PYTHONPATH=$ROOT exec "$reader" -B -m rft.runs.guard "$RUN_DIR" $$ </dev/null)
    GUARD_PID=$!
    read -r -u "$ready" || die "this launch cannot be guarded" "no answer of rft.runs.guard, see above" \
        "the process that ends a run whose launcher is killed" "correct what it says, then launch again"
    exec {ready}<&-
}

on_exit() {
    local status=$? last=${!:-}
    trap - EXIT ERR
    # A second signal must not leave processes behind, nor a message to a tee that the first one has ended.
    trap '' INT TERM HUP PIPE USR1 USR2
    set +e
    exec 1>&"$TERMINAL" 2>&1 # also where a signal has come within run_logged
    end_phase
    if [[ -n $INTERRUPTED ]]; then
        [[ -z $TEE_PID ]] || kill -KILL "$TEE_PID" 2>/dev/null # what processes say that are being ended is no error
        printf '\ninterrupted by %s: ending what this launch has started\n' "$INTERRUPTED"
    fi
    own_last "$last"
    stop_started
    stop_ray $((status == SAVED_AND_STOPPED ? 0 : status))
    stop_code_server
    stop_retriever
    if ((RUN_IS_OURS)); then end_orphans; fi
    if ((status > 128 && RUN_IS_OURS)) && [[ -n $INTERRUPTED && -f $RUN_DIR/run.json ]]; then
        "$PYTHON" -m rft.runs.stopped "$RUN_DIR" interrupted "$INTERRUPTED" "$status"
    fi
    if ((status == SAVED_AND_STOPPED)); then
        printf 'stopped and unfinished; to go on: %s\n' "$(print_command bash launch/resume.sh "$RUN_DIR")"
    fi
    stop_guard
    exit "$status"
}

# own_last PID: what was started last is ours too, where a signal has come before its number was kept.
own_last() {
    [[ " ${STARTED_PIDS[*]} $GUARD_PID $TEE_PID $RAY_PID $CODE_SERVER_PID $RETRIEVER_PID " != *" $1 "* ]] || return 0
    if descendants $$ | grep -x "$1" >/dev/null; then STARTED_PIDS+=("$1"); fi
}

# stop_started: end the commands that still run, with their children; nothing else.
stop_started() {
    local pid
    for pid in "${STARTED_PIDS[@]}"; do
        # Disowned, bash says nothing about how it ended. No `wait` does either, but one that comes while SIGCHLD is on its way,
        # as where the signal that ends this launch and the child's end arrive together, lasts for ever (bash 5.2).
        disown "$pid" 2>/dev/null
        stop_tree "$pid" 10
    done
    STARTED_PIDS=()
}

# stop_guard: the last act, since a SIGKILL may come before.
stop_guard() {
    [[ -n $GUARD_PID ]] || return 0
    kill -TERM "$GUARD_PID" 2>/dev/null
    while is_running "$GUARD_PID"; do sleep 0.02; done
}

# interrupted NAME STATUS: end by this signal.
interrupted() {
    INTERRUPTED=$1
    exit "$2"
}

# save_and_stop SIGNAL SECONDS STATUS: ask the training to save a checkpoint after its step and to stop, and wait for that, at
# most SECONDS where they are given. What has nothing to save ends at once with STATUS; asked again, so does what has.
save_and_stop() {
    ((TRAINS && ${2:-1})) || interrupted "$1" "$3"
    if [[ -n ${OPTION[disable_ds_ckpt]:-}${OPTION[async_train]:-} ]]; then
        printf '%s: this run keeps nothing to resume from (RESUMABLE=0, --disable_ds_ckpt or --async_train)\n' "$1" >&"$TERMINAL"
        [[ -z $2 ]] || interrupted "$1" "$3"
        printf '  so it goes on\n' >&"$TERMINAL"
        WAIT_AGAIN=1
        return 0
    fi
    [[ -z $SAVE_UNTIL ]] || interrupted "$1" "$3"
    WAIT_AGAIN=1
    if [[ -z $SAVE_ASKED ]]; then
        SAVE_ASKED=$1
        printf '%s\n' "$1" >"$RUN_DIR/save_and_stop" # see rft/hooks/save_and_stop.py
        printf '%s: the run saves a checkpoint after this step, then stops\n' "$1" >&"$TERMINAL"
    fi
    if [[ -n $2 ]]; then
        printf '  it has %s s for that (SAVE_SECONDS)\n' "$2" >&"$TERMINAL"
        SAVE_UNTIL=$((SECONDS + $2))
    fi
}

# wait_to_save PID: until it has ended, where a SIGTERM has said how long that may take. No timer in the background, which a
# handler within a handler would start: bash then waits for ever.
wait_to_save() {
    [[ -n $SAVE_UNTIL ]] || return 0
    while is_running "$1"; do
        ((SECONDS <= SAVE_UNTIL)) || interrupted SIGTERM 143
        sleep 0.1
    done
}

trap on_exit EXIT
trap 'interrupted SIGHUP 129' HUP
trap 'interrupted "SIGINT (Ctrl-C)" 130' INT
trap 'save_and_stop SIGTERM "$SAVE_SECONDS" 143' TERM
trap 'save_and_stop SIGUSR1 "" "$SAVED_AND_STOPPED"' USR1
trap 'interrupted "its watch, see above" 1' USR2
[[ ${SAVE_SECONDS:=90} =~ ^[0-9]+$ ]] || die "SAVE_SECONDS is no number of seconds" "SAVE_SECONDS=$SAVE_SECONDS" \
    "seconds that a training has after SIGTERM to save and stop" "unset SAVE_SECONDS, which means 90"
[[ ${STALL_LIMIT:=600} =~ ^[0-9]+$ ]] || die "STALL_LIMIT is no number of seconds" "STALL_LIMIT=$STALL_LIMIT" \
    "seconds after which a stopped process ends the run; 0: never" "unset STALL_LIMIT, which means 600"
export STALL_LIMIT
