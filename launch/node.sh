#!/usr/bin/env bash
# One node of a Ray cluster of several, for the length of this command.
#
#   bash launch/node.sh head                 NODE_ADDRESS=IP JOB_ID=7      blocks; prints the address that the others need
#   bash launch/node.sh worker HEAD:PORT     NODE_ADDRESS=IP JOB_ID=7      blocks; ends with status 1 when the head is gone
#   bash launch/node.sh driver GPUS HEAD:PORT COMMAND …                    waits for as many GPUs, then runs COMMAND on them
#
# COMMAND is a launcher; it gets RAY_ADDRESS and uses the cluster, which it never stops. Its status is the driver's. More
# variables: NODE_CPUS, NODE_GPUS, RAY_PORT, RAY_SECONDS, NODE_TMP, NETWORK, NODE_LOGS (a folder for this node's Ray logs), all in
# docs/clusters.md, with what listens.
set -Eeuo pipefail

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source=launch/usage.sh
source "$ROOT/launch/usage.sh"
# shellcheck source=launch/stack.sh
source "$ROOT/launch/stack.sh"
# shellcheck source=launch/ray.sh
source "$ROOT/launch/ray.sh"
# shellcheck source=launch/nodes.sh
source "$ROOT/launch/nodes.sh"
choose_stack
export_environment
[[ -x $PYTHON ]] || die "no environment on this node" "no $PYTHON" "the stack $RFT_STACK" "make setup, on each node or on a shared disk"

ended() {
    local status=$?
    trap - EXIT
    trap '' INT TERM HUP
    set +e
    end_node
    exit "$status"
}
trap ended EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# hold_node: until this node's Ray ends, which nobody has asked for.
hold_node() {
    local status=0
    wait "$RAY_PID" || status=$?
    tail -n 15 "$RAY_LOG" >&2
    die "this node's Ray has ended" "exit status $status of ${1:-the head} on $(hostname), see above" \
        "it to run until this command is ended" "see whether the head at $RAY_ADDRESS still runs; its log tells why"
}

case ${1:-} in
head)
    ray_head
    ray_wait 0
    printf 'head at %s; on the other nodes: bash launch/node.sh worker %s\n' "$RAY_ADDRESS" "$RAY_ADDRESS"
    hold_node
    ;;
worker)
    ray_worker "${2:-}"
    hold_node "the worker"
    ;;
driver)
    (($# >= 4)) || die "what the driver is to do is not said" "${*:2}" "GPUS HEAD:PORT COMMAND …" "bash launch/node.sh --help"
    export RAY_ADDRESS=$3
    ray_wait "$2"
    exec "${@:4}"
    ;;
*) die "no such part of a cluster" "${1:-nothing}" "head, worker or driver" "bash launch/node.sh --help" ;;
esac
