# shellcheck shell=bash disable=SC2154
# In a job of several nodes: Ray on each of them.

# begin_ray: a node of Ray on every node of the job; wait_for_ray waits and exports RAY_ADDRESS.
begin_ray() {
    local host
    RAY_PORT=${RAY_PORT:-$((30000 + SLURM_JOB_ID % 2000))}
    for host in "${TRAIN_HOSTS[@]}"; do ray_node "$host" "${NODE_GPUS:-}"; done
    if [[ $RETRIEVER_PLACE == ray ]]; then ray_node "$RETRIEVER_HOST" 0; fi
}

# ray_node HOST GPUS: Ray there, with GPUs devices, real or not; empty: those that it finds.
ray_node() {
    local address role=() log=$JOB_FOLDER/$SLURM_JOB_ID.ray_$1.log
    address=$(address_of "$1")
    if [[ $1 == "${TRAIN_HOSTS[0]}" ]]; then
        # AF_UNIX paths end at 107 bytes, and a shared disk cannot hold sockets.
        role=(--head --port "$RAY_PORT" --temp-dir "/tmp/rft_$SLURM_JOB_ID" --include-dashboard false --no-monitor)
    else
        role=(--address "$HEAD_ADDRESS:$RAY_PORT")
    fi
    begin_step "Ray" "$1" "$log" env RAY_USAGE_STATS_ENABLED=0 VLLM_HOST_IP="$address" \
        "$PYTHON" -m ray.scripts.scripts start --block "${role[@]}" --node-ip-address "$address" \
        --min-worker-port 0 --max-worker-port 0 --dashboard-agent-listen-port 0 --disable-usage-stats \
        ${NODE_CPUS:+--num-cpus "$NODE_CPUS"} ${2:+--num-gpus "$2"}
}

# wait_for_ray: until every node has joined; status 1 where one of them ended instead.
wait_for_ray() {
    local wanted=${#TRAIN_HOSTS[@]} deadline=$((SECONDS + 600))
    [[ $RETRIEVER_PLACE != ray ]] || wanted=$((wanted + 1))
    export RAY_ADDRESS=$HEAD_ADDRESS:$RAY_PORT
    say "waiting for $wanted nodes of Ray at $RAY_ADDRESS"
    until [[ $("$PYTHON" -c 'import sys; from ray._raylet import GcsClient
from ray.core.generated.gcs_pb2 import GcsNodeInfo
client = GcsClient(address=sys.argv[1])
print(sum(node.state == GcsNodeInfo.ALIVE for node in client.get_all_node_info().values()))' \
        "$RAY_ADDRESS" 2>/dev/null) == "$wanted" ]]; do
        if step_ended; then return 1; fi
        ((SECONDS < deadline)) || die "nodes of Ray are missing" "fewer than $wanted after 600 s" "one on each of \
${TRAIN_HOSTS[*]}" "read $JOB_FOLDER/$SLURM_JOB_ID.ray_*.log"
        sleep 1
    done
}
