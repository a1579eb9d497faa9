# shellcheck shell=bash disable=SC2034  # read by script.sh
# A cluster's preset: its variables, read and checked. Sourced by launch/slurm.sh.
#
# Names that begin with SBATCH_ are Slurm's, or follow its way: what the user has set wins over the preset.
#   SBATCH_PARTITION, _ACCOUNT, _QOS, _RESERVATION, _CONSTRAINT, _GRES, _MEM_PER_NODE, _TIMELIMIT, _EXCLUDE,
#   _CPUS_PER_TASK, _EXCLUSIVE (1: whole nodes)        as the options of sbatch; empty ones are left out
#   NODES             of the job, the retriever's among them
#   RETRIEVER_PLACE   none; apart: the job's last node holds the retriever and nothing else; ray: and joins Ray without GPUs
#   JOB_MODULES       to load in the job, in this order; JOB_PROXY_MODULE: the one that sets proxies, after them
#   JOB_INTERFACE     whose address a node is known by; empty: the one that its name resolves to
#   JOB_SCRATCH       a folder for caches of the hub, uv, Triton and vLLM, where the home directory is small
#   JOB_ENV           an array of NAME=VALUE for every process of the job
#   GPUS_PER_NODE     where several nodes train, actor and engine are placed on each GPU of each; empty: by the user's options
#   CLUSTER           the preset of launch/clusters for one of the nodes
#   NETWORK           a preset of launch/networks for several nodes
#   NODE_CPUS         that Ray is told of on each node; NODE_GPUS: likewise, where it shall not look for them
#   STOP_SECONDS      before the time limit at which the run is asked to save (default 600)
#   MAX_JOB_CHAINS    jobs of one run in a row, at most (default 30)

# read_preset CLUSTER: set them all.
read_preset() {
    local file=$1 presets
    # shellcheck disable=SC2012  # our own file names
    presets=$(cd -- "$ROOT/launch/clusters" && ls slurm_*.env | sed 's/^slurm_//; s/\.env$//' | paste -sd ' ')
    if [[ $file != *.env ]]; then file=$ROOT/launch/clusters/slurm_${1#slurm_}.env; fi
    [[ -n $1 && -r $file ]] || die "no such cluster" "${1:-nothing}" "one of $presets, or a file NAME.env of your own" \
        "bash launch/slurm.sh submit gh200 launch/train_grpo_20b.sh"
    JOB_ENV=() JOB_OPTIONS=()
    # shellcheck source=/dev/null
    source "$file"
    NODES=${NODES:-1} RETRIEVER_PLACE=${RETRIEVER_PLACE:-none} STOP_SECONDS=${STOP_SECONDS:-600}
    MAX_JOB_CHAINS=${MAX_JOB_CHAINS:-30} SBATCH_TIMELIMIT=${SBATCH_TIMELIMIT:-}
    check_preset
    place_on_nodes
}

# place_on_nodes: into JOB_OPTIONS, before the user's options, an actor's rank and an engine on each GPU of the nodes that train.
place_on_nodes() {
    local nodes=$NODES
    [[ $RETRIEVER_PLACE == none ]] || nodes=$((nodes - 1))
    ((nodes > 1)) && [[ -n ${GPUS_PER_NODE:-} ]] || return 0
    JOB_OPTIONS=(--actor_num_nodes "$nodes" --actor_num_gpus_per_node "$GPUS_PER_NODE")
    JOB_OPTIONS+=(--vllm_num_engines $((nodes * GPUS_PER_NODE)))
}

# extend FILE: in a preset, begin with another one of launch/clusters.
extend() {
    # shellcheck source=/dev/null
    source "$ROOT/launch/clusters/$1.env"
}

check_preset() {
    local name limit
    for name in NODES STOP_SECONDS MAX_JOB_CHAINS ${NODE_CPUS:+NODE_CPUS} ${GPUS_PER_NODE:+GPUS_PER_NODE}; do
        [[ ${!name} =~ ^[1-9][0-9]{0,5}$ ]] || die "$name is no number" "$name=${!name}" "a whole number from 1" \
            "correct it, or unset $name"
    done
    [[ $RETRIEVER_PLACE =~ ^(none|apart|ray)$ ]] || die "no such place" "RETRIEVER_PLACE=$RETRIEVER_PLACE" \
        "none, apart or ray" "unset RETRIEVER_PLACE"
    [[ $RETRIEVER_PLACE == none ]] || ((NODES > 1)) || die "too few nodes" "NODES=$NODES with RETRIEVER_PLACE=$RETRIEVER_PLACE" \
        "one for the retriever, and at least one to train on" "NODES=2, or RETRIEVER_PLACE=none"
    flag SBATCH_EXCLUSIVE 0
    [[ -n $SBATCH_TIMELIMIT ]] || return 0
    limit=$(seconds_of "$SBATCH_TIMELIMIT")
    # Slurm sends the signal at once where less time is left than that: every job would save before it has begun.
    ((limit >= 2 * STOP_SECONDS)) || die "the time limit leaves no time to train" \
        "SBATCH_TIMELIMIT=$SBATCH_TIMELIMIT, of which the last STOP_SECONDS=$STOP_SECONDS are for saving" \
        "a limit of twice that" "SBATCH_TIMELIMIT=24:00:00, or a smaller STOP_SECONDS"
}

# seconds_of LIMIT: a time limit as sbatch takes it: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S.
seconds_of() {
    local days=0 rest=$1 part=()
    [[ $1 =~ ^([0-9]+-)?[0-9]+(:[0-9]+){0,2}$ ]] || die "the time limit cannot be read" "SBATCH_TIMELIMIT=$1" \
        "minutes, hours:minutes:seconds, or days-hours" "SBATCH_TIMELIMIT=24:00:00"
    if [[ $1 == *-* ]]; then days=${1%%-*} rest=${1#*-}; fi
    IFS=: read -r -a part <<<"$rest"
    case $1,${#part[@]} in
    *-*,* | *,3) printf '%d\n' $((10#$days * 86400 + 10#${part[0]} * 3600 + 10#${part[1]:-0} * 60 + 10#${part[2]:-0})) ;;
    *) printf '%d\n' $((10#${part[0]} * 60 + 10#${part[1]:-0})) ;;
    esac
}
