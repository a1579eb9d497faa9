# shellcheck shell=bash disable=SC2154,SC2034  # nodes.sh stands before it, with strict mode
# The job of `launch/slurm.sh smoke`: every node looks at itself, all of them at each other, and the page judges.

# A retriever of one passage, where runs have theirs: can every node ask it?
begin_toy_retriever() {
    if [[ -n ${RETRIEVER_URL:-} ]]; then return 0; fi # the user's own
    printf '{"id": "0", "contents": "\\"smoke\\"\\nA smoke test."}\n' >"$JOB_FOLDER/corpus.jsonl"
    RETRIEVER_COMMAND=("$PYTHON" -m rft.retriever --corpus "$JOB_FOLDER/corpus.jsonl" --index bm25)
    begin_retriever "${HOSTS[-1]}"
    wait_for_retriever
}

on_exit() {
    local status=$?
    trap - EXIT
    set +e
    end_steps
    exit "$status"
}

main() {
    local host pids=() answers=$JOB_FOLDER/$SLURM_JOB_ID
    trap on_exit EXIT
    know_nodes
    say "smoke test on ${HOSTS[*]}"
    cluster_environment
    mkdir -p -- "$answers"
    begin_toy_retriever || say "the retriever did not start"
    say "each node by itself"
    for host in "${HOSTS[@]}"; do
        step "$host" "$PYTHON" -m rft.runs.smoke node "$answers" ${GPUS_PER_NODE:+--gpus "$GPUS_PER_NODE"} "${PLACES[@]}" &
        pids+=("$!")
    done
    wait "${pids[@]}" || true # the page names who has not answered
    say "an all-reduce over all of them"
    pids=()
    export MASTER_ADDR=$HEAD_ADDRESS MASTER_PORT=$((32000 + SLURM_JOB_ID % 700)) WORLD_SIZE=${#HOSTS[@]}
    for host in "${!HOSTS[@]}"; do
        RANK=$host step "${HOSTS[host]}" timeout 300 "$PYTHON" -m rft.runs.smoke reduce "$answers" &
        pids+=("$!")
    done
    wait "${pids[@]}" || true
    "$PYTHON" -m rft.runs.smoke page "$answers" --nodes "${#HOSTS[@]}"
}

main
