# shellcheck shell=bash
# A Ray cluster of several nodes: this node's part of it, on its own address, and stopped by its process tree. Sourced by
# launch/common.sh and launch/node.sh, behind launch/ray.sh, whose one-node cluster stays on the loopback.
#
# Read from the environment: NODE_ADDRESS (this node's IP), JOB_ID (folder and ports follow from it: two jobs on a node do not
# meet), RAY_PORT (the head's; default by JOB_ID), NODE_CPUS (default: those this process may use), NODE_GPUS (default: those
# found; on a machine without, logical ones), RAY_SECONDS (default 600), NODE_TMP (a disk of the node's own; default
# TMPDIR or /tmp), NETWORK (a preset of launch/networks; default sockets).

# ray_head: begin to start the head on this node. RAY_ADDRESS is where drivers and workers find it.
ray_head() {
    node_settings
    # A dead machine answers nothing: missed for (3 + 5) * 4 s, it is dead, and the run can end by name within a minute.
    export RAY_health_check_initial_delay_ms=5000 RAY_health_check_period_ms=3000 RAY_health_check_timeout_ms=5000 \
        RAY_health_check_failure_threshold=4
    RAY_ADDRESS="$NODE_ADDRESS:$RAY_PORT"
    [[ ! -e $RAY_DIR ]] || die "this job's Ray folder is there" "$RAY_DIR" "none: a head of this job runs here, or was killed" \
        "end that one; after a SIGKILL: rm -r $RAY_DIR, or another JOB_ID"
    begin_node --head --port "$RAY_PORT" --ray-client-server-port "$((RAY_PORT + 3))" --include-dashboard false --no-monitor \
        --temp-dir "$RAY_DIR"
    export RAY_ADDRESS
}

# ray_worker HEAD:PORT: begin to join this node to a head. Ray takes the folder's name from the head.
ray_worker() {
    [[ $1 =~ ^[^:/]+:[0-9]+$ ]] || die "no address of a head" "$1" "HOST:PORT" "bash launch/node.sh worker HOST:PORT"
    node_settings "${1##*:}"
    export RAY_ADDRESS=$1
    ray_wait 0 # Ray itself would go on asking, and say nothing
    # Ray's daemons end when the head has not answered for so long, and this node's part with them.
    export RAY_gcs_rpc_server_reconnect_timeout_s=20
    begin_node --address "$1"
}

# ray_wait GPUS [SECONDS]: until the cluster has as many; ends with what is there, and missing, by name.
ray_wait() {
    run_python -m rft.runs.nodes wait --address "$RAY_ADDRESS" --gpus "$1" --seconds "${2:-${RAY_SECONDS:-600}}" \
        ${RAY_PID:+--pid "$RAY_PID"} || exit
}

# check_nodes INPUT…: nodes of a cluster at RAY_ADDRESS that are alike, inputs too, and room for COMMAND, before training.
check_nodes() {
    [[ -z $RAY_PID ]] || return 0 # this launch's own, of one node
    run "$PYTHON" -m rft.runs.nodes check "${@/#/--input=}" -- "${COMMAND[@]}"
}

# node_settings [PORT]: check and derive this node's settings; PORT is the head's where it is known.
node_settings() {
    [[ ${NODE_ADDRESS:-} =~ ^[0-9]+(\.[0-9]+){3}$ && $NODE_ADDRESS != 127.* ]] ||
        die "this node has no address for the others" "NODE_ADDRESS=${NODE_ADDRESS:-}" "its IPv4 address on their network" \
            "NODE_ADDRESS=ADDRESS, one of: $(hostname -I 2>/dev/null || printf 'ip addr')"
    local name
    for name in NODE_CPUS NODE_GPUS RAY_SECONDS RAY_PORT; do
        [[ ${!name:-0} =~ ^[0-9]+$ ]] || die "$name is no number" "$name=${!name}" "a whole number" "correct it, or unset $name"
    done
    : "${JOB_ID:=0}"
    [[ $JOB_ID =~ ^[A-Za-z0-9_.-]+$ ]] || die "a job's id is a word" "JOB_ID=$JOB_ID" "letters, digits, _ . -" "another JOB_ID"
    # Ten ports a job, below those that the kernel gives to connections (32768 and up). Ids that follow each other, as a
    # scheduler's do, never share any.
    local slot=$JOB_ID
    if [[ ! $slot =~ ^[0-9]{1,17}$ ]]; then slot=$(cksum <<<"$JOB_ID") slot=${slot%% *}; fi
    RAY_PORT=${1:-${RAY_PORT:-$((20000 + 10#$slot % 1200 * 10))}}
    # AF_UNIX paths end at 107 bytes and Ray adds about 66 to its folder.
    local parent=${NODE_TMP:-${TMPDIR:-/tmp}}
    ((${#parent} <= 25)) || parent=/tmp
    ((${#JOB_ID} <= 10)) || slot=$(cksum <<<"$JOB_ID")
    RAY_DIR="$parent/rft.$( ((${#JOB_ID} <= 10)) && printf %s "$JOB_ID" || printf %s "${slot%% *}")"
    use_network
}

# use_network: the addresses and interfaces of NCCL, gloo and vLLM, which the workers of this node inherit.
use_network() {
    local file=$ROOT/launch/networks/${NETWORK:-sockets}.env
    [[ -r $file ]] || die "no such network" "NETWORK=$NETWORK" "$(cd "$ROOT/launch/networks" && printf '%s ' *.env)" \
        "one of them without .env, or unset NETWORK"
    NODE_INTERFACE=$("$PYTHON" -c 'import psutil, sys
for name, addresses in psutil.net_if_addrs().items():
    if sys.argv[1] in [a.address for a in addresses]: print(name)' "$NODE_ADDRESS")
    [[ -n $NODE_INTERFACE ]] || die "NODE_ADDRESS is not of this node" "$NODE_ADDRESS" "an address of one of its interfaces" \
        "NODE_ADDRESS=ADDRESS, one of: $(hostname -I 2>/dev/null || printf 'ip addr')"
    # shellcheck source=/dev/null
    source "$file"
}

# begin_node OPTION…: `ray start` with what head and workers share, in the background.
begin_node() {
    local name unwanted=()
    # What belongs to this shell alone, not to actors on this node: a preloaded NCCL would also be loaded by Ray's own
    # processes; a scheduler's variables about its step let MPI and NCCL plug-ins believe that they were started by it; an
    # earlier loopback run's setting would keep this node to itself; a run's places come with each run.
    for name in LD_PRELOAD RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER RAY_RUNTIME_ENV_HOOK "${!RFT_RUN_@}" "${!SLURM_@}" "${!PMI_@}" \
        "${!PMIX_@}" "${!OMPI_@}" METRICS_LOG_DIR SAMPLES_LOG_DIR SPIKE_LOG_PATH RAY_ADDRESS; do
        unwanted+=(-u "$name")
    done
    local gpus=()
    [[ -z ${NODE_GPUS:-} ]] || gpus=(--num-gpus "$NODE_GPUS")
    mkdir -p -- "${RAY_DIR%/*}"
    RAY_LOG=$(mktemp "${RAY_DIR%/*}/rft_node.XXXXXX")
    # As start_ray of launch/ray.sh; a node of 288 cores would start as many workers, so the count is given.
    RAY_USAGE_STATS_ENABLED=0 apart env "${unwanted[@]}" "$PYTHON" -m ray.scripts.scripts start "$@" --block \
        --node-ip-address "$NODE_ADDRESS" --num-cpus "${NODE_CPUS:-$(nproc)}" "${gpus[@]}" \
        --node-manager-port "$((RAY_PORT + 1))" --object-manager-port "$((RAY_PORT + 2))" \
        --dashboard-agent-listen-port "$((RAY_PORT + 4))" --dashboard-agent-grpc-port "$((RAY_PORT + 5))" \
        --runtime-env-agent-port "$((RAY_PORT + 6))" --metrics-export-port "$((RAY_PORT + 7))" \
        --min-worker-port 0 --max-worker-port 0 --disable-usage-stats >"$RAY_LOG" 2>&1 </dev/null &
    RAY_PID=$!
}

# end_node: this node's part of the cluster and nothing else; its logs stay in NODE_LOGS where that is set.
end_node() {
    [[ -n ${RAY_PID:-} ]] || return 0
    stop_tree "$RAY_PID" 10
    RAY_PID=""
    if [[ -n ${NODE_LOGS:-} ]]; then
        mkdir -p -- "$NODE_LOGS" && cp -r "$RAY_LOG" "$RAY_DIR"/session_latest/logs/. "$NODE_LOGS/" 2>/dev/null
    fi
    rm -rf -- "$RAY_DIR" "$RAY_LOG"
}

run_python() {
    PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" "$PYTHON" "$@"
}
