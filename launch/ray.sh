# shellcheck shell=bash
# A Ray cluster of our own: free ports, a temporary folder of its own, stopped by its process tree.
# Never `ray stop`: it ends every Ray on the machine. Sourced by launch/common.sh.

RAY_PID=""
RAY_DIR=""

# loopback_only: what this run listens on can be reached from this machine alone. None of it asks who is there, and Ray
# runs the code that it is sent: docs/security.md.
loopback_only() {
    # Without it Ray takes the machine's outer address for 127.0.0.1 (resolve_ip_for_localhost in ray/_private/services.py,
    # 2.48), and listens on every interface. Drivers need it as well as the head. It is named after the systems where a
    # cluster of this machine alone is Ray's default.
    export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0
    # vLLM's own address, and the interface of gloo's and NCCL's sockets; as in rft/hooks/loopback.py.
    export VLLM_HOST_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo
}

# start_ray [LOGICAL_GPUS]: begin to start a head node; wait_for_ray waits for it. Where the user has set RAY_ADDRESS,
# that cluster is used, and never stopped. LOGICAL_GPUS are registered whether they exist or not (CPU machines).
start_ray() {
    [[ $DRY_RUN != 1 ]] || return 0
    if [[ -n ${RAY_ADDRESS:-} ]]; then
        check_ray_address
        printf 'using Ray at %s (RAY_ADDRESS); it will not be stopped\n' "$RAY_ADDRESS"
        return 0
    fi
    loopback_only
    # AF_UNIX paths end at 107 bytes and Ray adds about 66 to its folder.
    local parent="${TMPDIR:-/tmp}"
    ((${#parent} <= 25)) || parent=/tmp
    RAY_DIR=$(mktemp -d "$parent/rft.XXXXXX")
    export RFT_RAY_DIR=$RAY_DIR # for rft.runs.guard
    local resources=()
    [[ -z ${1:-} ]] || resources=(--num-cpus 8 --num-gpus "$1")
    : >"$RAY_DIR/start.log"
    # --block keeps Ray's processes under one parent, which ends them when it ends. Port 0 lets the GCS choose; the
    # client server refuses 0, so it is given a free one. --min/max-worker-port 0: any, not a range that two clusters
    # would share. The dashboard and the autoscaler's monitor are of no use here and cost start-up time.
    RAY_USAGE_STATS_ENABLED=0 apart "$PYTHON" -m ray.scripts.scripts start --head --block \
        --node-ip-address 127.0.0.1 --port 0 \
        --ray-client-server-port "$(free_port)" --dashboard-agent-listen-port 0 \
        --min-worker-port 0 --max-worker-port 0 --include-dashboard false --no-monitor --disable-usage-stats \
        --temp-dir "$RAY_DIR" "${resources[@]}" >"$RAY_DIR/start.log" 2>&1 </dev/null &
    RAY_PID=$!
}

# wait_for_ray: wait until the cluster of start_ray takes work, and export its RAY_ADDRESS.
wait_for_ray() {
    if [[ -z $RAY_PID ]]; then
        [[ -n ${RAY_ADDRESS:-} ]] || die "no Ray cluster" "neither start_ray nor RAY_ADDRESS" "one of them" \
            "call start_ray before launch_grpo"
        return 0
    fi
    local deadline=$((SECONDS + 120))
    until grep -q 'Ray runtime started' "$RAY_DIR/start.log" && [[ -s $RAY_DIR/ray_current_cluster ]]; do
        if ! kill -0 "$RAY_PID" 2>/dev/null || ((SECONDS > deadline)); then
            tail -n 15 "$RAY_DIR/start.log" >&2
            die "Ray did not start" "the log above ($RAY_DIR/start.log)" "a Ray head within 120 s" \
                "free memory, /dev/shm or ports, then launch again; or set RAY_ADDRESS to a running cluster"
        fi
        sleep 0.1
    done
    # Exported, so that ray.init() joins this cluster and no other that happens to run here.
    RAY_ADDRESS=$(<"$RAY_DIR/ray_current_cluster")
    export RAY_ADDRESS
    # Where stop_ray puts the logs of a run that failed: an error message names this place, not one that is gone.
    export RFT_RAY_LOGS="$RUN_DIR/ray_logs"
}

# stop_ray [STATUS]: stop the cluster of start_ray and nothing else. Its logs stay in the run directory if STATUS is
# not 0.
stop_ray() {
    [[ -n $RAY_PID ]] || return 0
    # A run that failed has nothing left to finish, and is to end within a minute on a busy machine too.
    stop_tree "$RAY_PID" $((${1:-0} ? 8 : 20))
    RAY_PID=""
    unset RAY_ADDRESS RFT_RAY_LOGS RFT_RAY_DIR
    if [[ ${1:-0} != 0 && -d $RUN_DIR ]]; then
        mkdir -p "$RUN_DIR/ray_logs"
        cp -r "$RAY_DIR/start.log" "$RAY_DIR"/session_latest/logs/. "$RUN_DIR/ray_logs/" 2>/dev/null
        printf 'Ray logs: %s\n' "$RUN_DIR/ray_logs" >&2
    fi
    rm -rf -- "$RAY_DIR"
    RAY_DIR=""
}

# A RAY_ADDRESS of the form host:port that nobody listens on is refused in seconds, not after OpenRLHF has loaded.
check_ray_address() {
    [[ $RAY_ADDRESS =~ ^([^/:]+):([0-9]+)$ ]] || return 0
    # shellcheck disable=SC2016  # the inner bash expands them; /dev/tcp is a feature of bash
    timeout 5 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" 2>/dev/null ||
        die "no Ray at RAY_ADDRESS" "RAY_ADDRESS=$RAY_ADDRESS, where nothing listens" "the address of a running Ray head" \
            "unset RAY_ADDRESS to start a cluster for this run, or correct it"
}

# apart CMD ARG…: CMD in place of this subshell, in a session of its own, so that Ctrl-C and a closed terminal reach the
# launcher alone, which ends what it started in order. vLLM's EngineCore ends at a SIGINT, and looks as if it had failed.
# Not `set -m`: it stops a launcher in the background of a terminal.
apart() {
    exec "$PYTHON" -IS -c 'import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])' "$@"
}

free_port() {
    "$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'
}

# descendants PID: PID and its children, theirs, and so on, one a line, from /proc (ps may be missing).
descendants() {
    local stat line pid parent queue=("$1") next=()
    local -A children=()
    for stat in /proc/[0-9]*/stat; do
        { read -r line <"$stat"; } 2>/dev/null || continue
        pid=${line%% *}
        read -r _ parent _ <<<"${line##*) }" # behind the command name, which may hold anything
        children[$parent]+=" $pid"
    done
    while ((${#queue[@]})); do
        pid=${queue[0]}
        printf '%s\n' "$pid"
        read -r -a next <<<"${children[$pid]:-}"
        queue=("${queue[@]:1}" "${next[@]}")
    done
}

# stop_tree PID SECONDS: SIGTERM to PID, which may end its children in good order; to what it leaves behind as well;
# SIGKILL to all that still runs after SECONDS.
stop_tree() {
    local pid i alive orphaned=0 tree=()
    is_running "$1" || return 0
    mapfile -t tree < <(descendants "$1")
    kill -TERM "$1" 2>/dev/null
    for ((i = 0; i < $2 * 10; i++)); do
        alive=()
        for pid in "${tree[@]}"; do
            if is_running "$pid"; then alive+=("$pid"); fi
        done
        tree=("${alive[@]}")
        ((${#tree[@]})) || return 0
        if ((!orphaned)) && [[ ${tree[0]} != "$1" ]]; then
            orphaned=1
            kill -TERM "${tree[@]}" 2>/dev/null
        fi
        sleep 0.1
    done
    kill -KILL "${tree[@]}" 2>/dev/null
    i=0
    for pid in "${tree[@]}"; do # a process in the middle of a driver call may take its time: 5 s for all of them
        while is_running "$pid" && ((i++ < 50)); do sleep 0.1; done
    done
}

# left_of_run: processes that carry this run's RFT_RUN_DIR, see rft/runs/memory.py, one a line; without the launcher's own
# children, such as tee, which carry it too.
left_of_run() {
    local pid own marked
    own=$(descendants $$)
    mapfile -t marked < <(grep -lzxF -- "RFT_RUN_DIR=$RUN_DIR" /proc/[0-9]*/environ 2>/dev/null | cut -d / -f 3)
    for pid in "${marked[@]}"; do
        if is_running "$pid" && ! grep -qx "$pid" <<<"$own"; then printf '%s\n' "$pid"; fi
    done
}

# end_orphans: end what is left of this run though its parents are gone, such as vLLM's EngineCore after a SIGKILL of the
# Ray worker that had started it.
end_orphans() {
    local pid orphans=()
    mapfile -t orphans < <(left_of_run)
    ((${#orphans[@]})) || return 0
    kill -TERM "${orphans[@]}" 2>/dev/null
    for pid in "${orphans[@]}"; do stop_tree "$pid" 5; done
}

# is_running PID: it exists and is not a zombie.
is_running() {
    local line
    { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
    [[ ${line##*) } != Z* ]]
}
