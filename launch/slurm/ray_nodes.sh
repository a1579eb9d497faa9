# shellcheck shell=bash disable=SC2154
# In a job of several nodes: Ray on each of them, by launch/node.sh.

# begin_ray: a node of Ray on every node of the job; wait_for_ray waits.
begin_ray() {
    local host
    export RAY_PORT=$((20000 + SLURM_JOB_ID % 1200 * 10)) # ten ports a job, as launch/nodes.sh has them
    for host in "${TRAIN_HOSTS[@]}"; do ray_node "$host" "${NODE_GPUS:-}"; done
    if [[ $RETRIEVER_PLACE == ray ]]; then ray_node "$RETRIEVER_HOST" 0; fi
}

# ray_node HOST GPUS: Ray there, with GPUS devices, real or not; empty: those that it finds.
ray_node() {
    local address words=(worker "$HEAD_ADDRESS:$RAY_PORT")
    address=$(address_of "$1")
    if [[ $1 == "${TRAIN_HOSTS[0]}" ]]; then words=(head); fi
    begin_step "Ray" "$1" "$JOB_FOLDER/$SLURM_JOB_ID.ray_$1.log" env NODE_ADDRESS="$address" NODE_GPUS="$2" \
        NODE_LOGS="$JOB_FOLDER/$SLURM_JOB_ID.ray_$1" bash "$ROOT/launch/node.sh" "${words[@]}"
}

# wait_for_ray: until the cluster has the GPUs of all nodes, and export its RAY_ADDRESS; status 1 where a node ended instead.
wait_for_ray() {
    local gpus=${NODE_GPUS:-${GPUS_PER_NODE:-0}}
    export RAY_ADDRESS=$HEAD_ADDRESS:$RAY_PORT
    say "waiting for Ray at $RAY_ADDRESS"
    while_steps_live "$PYTHON" -m rft.runs.nodes wait --address "$RAY_ADDRESS" --gpus $((${#TRAIN_HOSTS[@]} * gpus)) --seconds 600
}
