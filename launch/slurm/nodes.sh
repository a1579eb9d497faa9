# shellcheck shell=bash disable=SC2154,SC2034  # values come before, train.sh or smoke.sh behind
# In a job: its nodes, their environment, and what runs on each of them.
set -Eeuo pipefail

WATCHED=()       # process ids of steps that must live as long as the run
declare -A STEP=() # process id -> what it is and where, in words
LOST=""          # what a step that ended too early was
HOSTS=() TRAIN_HOSTS=() RETRIEVER_HOST="" HEAD_ADDRESS=""

say() { printf '==> %(%H:%M:%S)T %s\n' -1 "$*"; }

# step HOST CMD ARG…: on that node. --overlap: beside other steps, which hold all of it; without it a second step waits for
# ever. --export=ALL: modules, proxies and what this script exports. The CPUs of a step are not the job's unless asked for.
step() {
    local more=()
    [[ -z ${SLURM_CPUS_PER_TASK:-} ]] || more=(--cpus-per-task="$SLURM_CPUS_PER_TASK")
    srun --overlap --export=ALL --nodes=1 --ntasks=1 --nodelist="$1" --mem=0 --cpu-bind=none "${more[@]}" "${@:2}" </dev/null
}

# begin_step WHAT HOST LOG CMD ARG…: a step in the background that is watched from now on. It blocks: what a step leaves
# behind is killed with it (proctrack/cgroup).
begin_step() {
    step "$2" "${@:4}" >>"$3" 2>&1 &
    WATCHED+=("$!")
    STEP[$!]="$1 on $2 (its log: $3)"
}

# step_ended: a watched step has; LOST names it. Status 1 where all of them run.
step_ended() {
    local pid status=0
    for pid in "${WATCHED[@]}"; do
        kill -0 "$pid" 2>/dev/null && continue
        wait "$pid" || status=$?
        LOST="${STEP[$pid]} has ended with status $status"
        printf 'error: %s\n' "$LOST" >&2
        return 0
    done
    return 1
}

end_steps() {
    ((${#WATCHED[@]})) || return 0
    kill -TERM "${WATCHED[@]}" 2>/dev/null || true # those that have ended
    wait "${WATCHED[@]}" || true
    WATCHED=()
}

# know_nodes: HOSTS, TRAIN_HOSTS, RETRIEVER_HOST. This script runs on the first, where the driver needs a node of Ray; so
# the retriever takes the last.
know_nodes() {
    [[ -z $SLURM_PROGRAMS ]] || PATH+=:$SLURM_PROGRAMS # a login shell may set PATH anew
    mapfile -t HOSTS < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    ((${#HOSTS[@]})) || die "the job has no nodes" "SLURM_JOB_NODELIST=$SLURM_JOB_NODELIST" "their names" "see scontrol show job"
    TRAIN_HOSTS=("${HOSTS[@]}")
    if [[ $RETRIEVER_PLACE != none ]]; then
        RETRIEVER_HOST=${HOSTS[-1]}
        unset 'TRAIN_HOSTS[-1]'
    fi
}

# cluster_environment: modules, caches, the preset's variables, no proxy between nodes.
cluster_environment() {
    local word address hosts=localhost,127.0.0.1
    load_modules
    if [[ -n $JOB_SCRATCH ]]; then
        mkdir -p -- "$JOB_SCRATCH"
        export HF_HOME=${HF_HOME:-$JOB_SCRATCH/huggingface} UV_CACHE_DIR=${UV_CACHE_DIR:-$JOB_SCRATCH/uv} UV_LINK_MODE=copy
        export XDG_CACHE_HOME=$JOB_SCRATCH/cache TRITON_CACHE_DIR=$JOB_SCRATCH/triton VLLM_CACHE_ROOT=$JOB_SCRATCH/vllm
    fi
    export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1} TRANSFORMERS_OFFLINE=${TRANSFORMERS_OFFLINE:-1}
    for word in "${JOB_ENV[@]}"; do export "${word?}"; done
    [[ -z $NETWORK ]] || export NETWORK
    # Ray must neither pack the folder that it is called from nor build it anew on the nodes, which have no index.
    export RAY_ENABLE_UV_RUN_RUNTIME_ENV=0 RFT_STACK JOB_ID=$SLURM_JOB_ID
    unset RAY_RUNTIME_ENV_HOOK
    [[ -z $NODE_CPUS ]] || export NODE_CPUS
    # Exact names: Python's requests knows no patterns, and the proxy answers for hosts of the cluster with 403.
    for word in "${HOSTS[@]}"; do
        address=$(address_of "$word")
        hosts+=,$word,$address
        [[ $word != "${TRAIN_HOSTS[0]}" ]] || HEAD_ADDRESS=$address
    done
    export no_proxy=${no_proxy:-${NO_PROXY:-}}
    no_proxy+=${no_proxy:+,}$hosts
    export NO_PROXY=$no_proxy
}

load_modules() {
    local name
    [[ -n $JOB_MODULES$JOB_PROXY_MODULE ]] || return 0
    declare -F module >/dev/null || die "no modules here" "no function module on $(hostname)" \
        "it, for JOB_MODULES=$JOB_MODULES $JOB_PROXY_MODULE" "correct the preset, or ask the cluster's administrators"
    for name in $JOB_MODULES $JOB_PROXY_MODULE; do
        set +eu # what modules run is not ours
        module load "$name"
        set -eu
        [[ :${LOADEDMODULES:-}: == *":$name"[:/]* ]] || die "a module was not loaded" "$name, on $(hostname)" \
            "a module of this cluster" "module avail $name shows its versions; correct the preset"
    done
}

# address_of HOST: the address of its interface JOB_INTERFACE, else the one of its name. Nodes with several networks give one
# or another for their name.
address_of() {
    local found
    if [[ -n $JOB_INTERFACE ]]; then
        found=$(step "$1" ip -4 -o addr show dev "$JOB_INTERFACE" | awk '{ sub("/.*", "", $4); print $4; exit }') || true
    else
        found=$(getent ahostsv4 "$1" | awk '{ print $1; exit }') || true
    fi
    [[ -n $found ]] || die "a node has no address" "$1${JOB_INTERFACE:+, interface $JOB_INTERFACE}" "an IPv4 address" \
        "correct JOB_INTERFACE in the preset: ip -4 addr on that node shows its interfaces"
    printf '%s\n' "$found"
}

# begin_retriever HOST: on its node, with all GPUs of it; RETRIEVER_URL and RETRIEVER_TOKEN are exported.
begin_retriever() {
    local address
    address=$(address_of "$1")
    RETRIEVER_PORT=${RETRIEVER_PORT:-$((19000 + SLURM_JOB_ID % 1000))} # below Ray's
    RETRIEVER_TOKEN=${RETRIEVER_TOKEN:-$("$PYTHON" -c 'import secrets; print(secrets.token_urlsafe())')}
    export RETRIEVER_URL=http://$address:$RETRIEVER_PORT RETRIEVER_TOKEN
    begin_step "the retriever" "$1" "$JOB_FOLDER/$SLURM_JOB_ID.retriever.log" \
        "${RETRIEVER_COMMAND[@]}" --host "$address" --port "$RETRIEVER_PORT"
}

# wait_for_retriever: up to ten minutes, since an index of tens of GB is read first.
wait_for_retriever() {
    say "waiting for the retriever at $RETRIEVER_URL"
    while_steps_live "$PYTHON" -m rft.runs.retriever "$RETRIEVER_URL" --seconds 600
}

# while_steps_live CMD ARG…: its status; 1 as soon as a watched step ends.
while_steps_live() {
    local asking
    "$@" </dev/null &
    asking=$!
    while kill -0 "$asking" 2>/dev/null; do
        if step_ended; then
            kill "$asking" 2>/dev/null || true # it may have ended meanwhile
            return 1
        fi
        sleep 1 &
        wait "$!" || true
    done
    wait "$asking"
}
