# shellcheck shell=bash
# A server that a run asks and starts for itself: the code server, the retriever. One way to start, wait for, watch and
# stop each. Sourced by launch/common.sh.
#
# NAME is what a server's variables are named by (CODE_SERVER). START_NAME, NAME_PORT and NAME_URL are the user's;
# NAME_PID and NAME_LOG are set here. WHAT names it in messages.

# check_service NAME WHAT: the user's variables; before anything is made.
check_service() {
    local start=START_$1 port=$1_PORT url=$1_URL
    [[ -z ${!start:-} ]] || flag "$start" 0
    [[ ${!start:-0} != 1 || -z ${!url:-} ]] || die "two $2s at once" "$start=1 and $url=${!url}" \
        "one of this run's own, or the one there" "unset one of the two"
    if [[ ! ${!port:-} =~ ^([1-9][0-9]{0,4})?$ ]] || ((${!port:-1} > 65535)); then
        die "$port is no port" "$port=${!port}" "1 to 65535, or unset for a free one" "unset $port"
    fi
}

# use_service NAME WHAT PURPOSE: for a task that needs one; it is started unless NAME_URL names another.
use_service() {
    local start=START_$1 url=$1_URL
    [[ -n ${!url:-} || -n ${!start:-} ]] || printf -v "$start" 1
    ((${!start:-0})) || [[ -n ${!url:-} ]] || die "this task needs a $2" "$start=0 and no $url" "$3" \
        "unset $start, or set $url=http://127.0.0.1:PORT to a running one"
}

# starts_service NAME: this launch starts one.
starts_service() {
    local start=START_$1
    [[ $DRY_RUN != 1 && ${!start:-0} == 1 ]]
}

# address_service NAME HOST: where it will be, before Ray, whose workers inherit NAME_URL.
address_service() {
    local port=$1_PORT
    printf -v "$port" '%s' "${!port:-$(free_port)}"
    local host=$2
    [[ $host != *:* ]] || host="[$host]"
    declare -gx "$1_URL=http://$host:${!port}"
}

# begin_service NAME CMD ARG…: begin to start it; wait_for_service waits. Its log: the command's name in the run directory.
begin_service() {
    local log=$RUN_DIR/${1,,}.log
    printf -v "$1_LOG" '%s' "$log"
    apart "${@:2}" >>"$log" 2>&1 </dev/null &
    printf -v "$1_PID" '%s' "$!"
    disown "$!" # bash has nothing to say about its end
}

# wait_for_service NAME [OPTION…]: until it answers, this run's or the one at NAME_URL. The options are rft.runs.NAME's.
# This run's is watched from then on: the run ends with it.
wait_for_service() {
    local name=$1 url=$1_URL pid=$1_PID log=$1_LOG options=()
    [[ $DRY_RUN != 1 && -n ${!url:-} ]] || return 0
    [[ -z ${!pid} ]] || options=(--pid "${!pid}" --log "${!log}")
    run "$PYTHON" -m "rft.runs.${name,,}" "${!url}" "${options[@]}" "${@:2}"
    [[ -n ${!pid} ]] || return 0
    "$PYTHON" -m "rft.runs.${name,,}" "${!url}" "${options[@]}" --watch "$RUN_DIR" </dev/null &
    STARTED_PIDS+=("$!")
}

# stop_service NAME WHAT: end the server of begin_service and what it has started, and nothing else.
stop_service() {
    local pid=$1_PID log=$1_LOG
    [[ -n ${!pid} ]] || return 0
    is_running "${!pid}" ||
        printf 'the %s (process %s) had ended before; its log: %s\n' "$2" "${!pid}" "${!log}" >&2
    stop_tree "${!pid}" 10
    printf -v "$pid" ''
}
