# shellcheck shell=bash
# How a launch ends: what it started ends with it, in order, by whatever signal. Sourced by launch/common.sh.

GUARD_PID=""       # rft.runs.guard, which ends what this launcher cannot
TEE_PID=""         # of run_logged
INTERRUPTED=""     # the signal that ends this launch
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
    local status=$?
    trap - EXIT ERR
    # A second signal must not leave processes behind, nor a message to a tee that the first one has ended.
    trap '' INT TERM HUP PIPE USR1
    set +e
    exec 1>&"$TERMINAL" 2>&1 # also where a signal has come within run_logged
    end_phase
    if [[ -n $INTERRUPTED ]]; then
        [[ -z $TEE_PID ]] || kill -KILL "$TEE_PID" 2>/dev/null # what processes say that are being ended is no error
        printf '\ninterrupted by %s: ending what this launch has started\n' "$INTERRUPTED"
    fi
    stop_started
    stop_ray "$status"
    stop_code_server
    stop_retriever
    if ((RUN_IS_OURS)); then end_orphans; fi
    if ((status > 128 && RUN_IS_OURS)) && [[ -n $INTERRUPTED && -f $RUN_DIR/run.json ]]; then
        "$PYTHON" -m rft.runs.stopped "$RUN_DIR" interrupted "$INTERRUPTED" "$status"
    fi
    stop_guard
    exit "$status"
}

# stop_started: end the commands that still run, with their children; nothing else.
stop_started() {
    local pid
    for pid in "${STARTED_PIDS[@]}"; do
        { stop_tree "$pid" 10 && wait "$pid"; } 2>/dev/null # bash's own message about how it ended
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

trap on_exit EXIT
trap 'interrupted SIGHUP 129' HUP
trap 'interrupted "SIGINT (Ctrl-C)" 130' INT
trap 'interrupted SIGTERM 143' TERM
trap 'interrupted "its watch, see above" 1' USR1
[[ ${STALL_LIMIT:=600} =~ ^[0-9]+$ ]] || die "STALL_LIMIT is no number of seconds" "STALL_LIMIT=$STALL_LIMIT" \
    "seconds after which a stopped process ends the run; 0: never" "unset STALL_LIMIT, which means 600"
export STALL_LIMIT
