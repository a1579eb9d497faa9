# shellcheck shell=bash
# Which preset of launch/clusters a launch takes, and the engine's part of a GPU. Sourced by launch/common.sh.

# use_cluster: the preset that CLUSTER names; cpu where RFT_STACK=cpu is set; else the one for this machine's GPUs, which
# is said on stderr, since a dry run's output is commands. After `use models/NAME`, by whose MODEL_ID presets differ.
use_cluster() {
    local name=${CLUSTER:-} presets
    CLUSTER_ARGS=()
    mapfile -t presets < <(cluster_presets)
    if [[ -z $name && $STACK_GIVEN == cpu* ]]; then name=cpu; fi
    if [[ -z $name ]]; then
        name=$(python_module rft.runs.cluster "${MODEL_ID##*/}" "${presets[@]}") || exit
    fi
    [[ $name != cpu && $name != [0-9]*x* || ! -r $ROOT/launch/clusters/$name.env ]] || use "clusters/$name"
    ((${#CLUSTER_ARGS[@]})) || die "no preset for ${MODEL_ID##*/}" "CLUSTER=$name" "one of ${presets[*]}" \
        "name another, or unset CLUSTER to have it chosen from nvidia-smi"
}

# cluster_presets: names of the machines, COUNTxCARD, whose preset sets something for the model, one a line. Before one is
# used.
cluster_presets() {
    local file
    for file in "$ROOT"/launch/clusters/[0-9]*x*.env; do
        if (use "clusters/$(basename -- "$file" .env)" && ((${#CLUSTER_ARGS[@]}))); then basename -- "$file" .env; fi
    done
}

# share_gpu: where COMMAND colocates actor and engine and gives no utilisation, add the one that fits this GPU and model
# to the preset. Status 1 where nothing was added.
share_gpu() {
    local share
    [[ -n ${OPTION[colocate_all_models]} && " ${COMMAND[*]}" != *" --vllm_gpu_memory_utilization"* ]] || return 1
    share=$(python_module rft.runs.preflight.engine "${COMMAND[@]}") || exit
    [[ -n $share ]] || return 1
    CLUSTER_ARGS+=(--vllm_gpu_memory_utilization "$share")
}

# require_share: after share_gpu, a utilisation for GPUs that it could not see, those of a cluster at RAY_ADDRESS.
require_share() {
    [[ $DRY_RUN != 1 && $STACK_KIND == gpu && -n ${OPTION[colocate_all_models]} ]] || return 0
    [[ " ${COMMAND[*]}" == *" --vllm_gpu_memory_utilization"* ]] ||
        die "the engine's part of a shared GPU is not known" "no GPU here to compute it for" \
            "--vllm_gpu_memory_utilization" "give it (docs/running.md), or launch on a machine with such a GPU"
}

# python_module MODULE ARG…: run it before the set-up too, which makes or repairs .venv: rft alone needs any Python 3.11.
python_module() {
    local reader
    reader=$(any_python) || return
    PYTHONPATH=$ROOT "$reader" -B -m "$@"
}

any_python() {
    if "$PYTHON" -c '' 2>/dev/null; then printf '%s\n' "$PYTHON"; else find_python; fi
}
