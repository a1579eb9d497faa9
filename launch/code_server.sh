# shellcheck shell=bash
# The code server that rewards and evaluations of programs ask (docs/code_rewards.md): one of this run's own, on the
# loopback, which starts and ends with the run. Sourced by launch/common.sh.
#
#   START_CODE_SERVER  1: start it (tasks that need one do); 0: none, or the one that runs at CODE_SERVER_URL
#   CODE_SERVER_PORT   its port; default: a free one
#   CODE_SERVER_URL    of a server that somebody else started and that this run shall ask; CODE_SERVER_TOKEN is its token

CODE_SERVER_PID=""
CODE_SERVER_LOG=""

[[ -z ${START_CODE_SERVER:-} ]] || flag START_CODE_SERVER 0
[[ ${START_CODE_SERVER:-0} != 1 || -z ${CODE_SERVER_URL:-} ]] || die "two code servers at once" \
    "START_CODE_SERVER=1 and CODE_SERVER_URL=$CODE_SERVER_URL" "one of this run's own, or the one there" \
    "unset one of the two"
if [[ ! ${CODE_SERVER_PORT:=} =~ ^([1-9][0-9]{0,4})?$ ]] || ((${CODE_SERVER_PORT:-1} > 65535)); then
    die "CODE_SERVER_PORT is no port" "CODE_SERVER_PORT=$CODE_SERVER_PORT" "1 to 65535, or unset for a free one" \
        "unset CODE_SERVER_PORT"
fi

# use_code_server: for a task whose reward asks one; it is started unless CODE_SERVER_URL names another.
use_code_server() {
    [[ -n ${CODE_SERVER_URL:-} ]] || START_CODE_SERVER=${START_CODE_SERVER:-1}
    ((${START_CODE_SERVER:-0})) || [[ -n ${CODE_SERVER_URL:-} ]] || die "this task needs a code server" \
        "START_CODE_SERVER=0 and no CODE_SERVER_URL" "a server that runs the programs" \
        "unset START_CODE_SERVER, or set CODE_SERVER_URL=http://127.0.0.1:PORT to a running one"
}

# start_code_server: begin to start it, before Ray, whose workers inherit CODE_SERVER_URL; wait_for_code_server waits.
start_code_server() {
    [[ $DRY_RUN != 1 && ${START_CODE_SERVER:-0} == 1 ]] || return 0
    local port=$CODE_SERVER_PORT
    [[ -n $port ]] || port=$(free_port)
    CODE_SERVER_LOG=$RUN_DIR/code_server.log
    export CODE_SERVER_URL=http://127.0.0.1:$port
    apart "$PYTHON" -m rft.code_server --host 127.0.0.1 --port "$port" >>"$CODE_SERVER_LOG" 2>&1 </dev/null &
    CODE_SERVER_PID=$!
    disown "$CODE_SERVER_PID" # bash has nothing to say about its end
}

# wait_for_code_server: until the server answers with its isolation, this run's or the one at CODE_SERVER_URL.
wait_for_code_server() {
    [[ $DRY_RUN != 1 && -n ${CODE_SERVER_URL:-} ]] || return 0
    local options=()
    [[ -z $CODE_SERVER_PID ]] || options=(--pid "$CODE_SERVER_PID" --log "$CODE_SERVER_LOG")
    run "$PYTHON" -m rft.runs.code_server "$CODE_SERVER_URL" "${options[@]}"
    if [[ -n $CODE_SERVER_PID ]]; then
        "$PYTHON" -m rft.runs.code_server "$CODE_SERVER_URL" "${options[@]}" --watch "$RUN_DIR" </dev/null &
        STARTED_PIDS+=("$!")
    fi
    if [[ -n $CODE_SERVER_PID && -n ${RAY_ADDRESS:-} && -z $RAY_PID ]]; then start_servers_of_nodes; fi
}

# start_servers_of_nodes: one on each other node of the cluster at RAY_ADDRESS, since engines ask their own loopback.
start_servers_of_nodes() {
    local line ready
    exec {ready}< <(apart "$PYTHON" -m rft.runs.code_server_nodes "$CODE_SERVER_URL" --logs "$RUN_DIR" </dev/null)
    STARTED_PIDS+=("$!")
    while read -r -u "$ready" line && [[ $line != ready ]]; do printf '%s\n' "$line"; done
    exec {ready}<&-
    [[ ${line:-} == ready ]] || die "a node has no code server" "see above" "one on each node of $RAY_ADDRESS" "what it says"
}

# stop_code_server: end the server of start_code_server and what it has started, and nothing else.
stop_code_server() {
    [[ -n $CODE_SERVER_PID ]] || return 0
    is_running "$CODE_SERVER_PID" ||
        printf 'the code server (process %s) had ended before; its log: %s\n' "$CODE_SERVER_PID" "$CODE_SERVER_LOG" >&2
    stop_tree "$CODE_SERVER_PID" 10
    CODE_SERVER_PID=""
}
