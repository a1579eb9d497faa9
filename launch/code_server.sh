# shellcheck shell=bash
# The code server that rewards and evaluations of programs ask (docs/code_rewards.md): one of this run's own, on the
# loopback, which starts and ends with the run. Sourced by launch/common.sh.
#
#   START_CODE_SERVER  1: start it (tasks that need one do); 0: none, or the one that runs at CODE_SERVER_URL
#   CODE_SERVER_PORT   its port; default: a free one
#   CODE_SERVER_URL    of a server that somebody else started and that this run shall ask; CODE_SERVER_TOKEN is its token

CODE_SERVER_PID="" # of the one that this launch has started
check_service CODE_SERVER "code server"

use_code_server() { use_service CODE_SERVER "code server" "a server that runs the programs"; }

# start_code_server: begin to start it, before Ray, whose workers inherit CODE_SERVER_URL; wait_for_code_server waits.
start_code_server() {
    starts_service CODE_SERVER || return 0
    address_service CODE_SERVER 127.0.0.1
    begin_service CODE_SERVER "$PYTHON" -m rft.code_server --host 127.0.0.1 --port "$CODE_SERVER_PORT"
}

# wait_for_code_server: until the server answers with its isolation, this run's or the one at CODE_SERVER_URL.
wait_for_code_server() {
    wait_for_service CODE_SERVER
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

stop_code_server() { stop_service CODE_SERVER "code server"; }
