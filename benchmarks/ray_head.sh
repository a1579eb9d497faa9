#!/usr/bin/env bash
# Hold a Ray head of our own until standard input closes: ray_head.sh [LOGICAL_GPUS], with PYTHON and RFT_RUN_DIR set.
# Prints the cluster's address. However the caller ends, its end of the pipe closes, and the cluster stops with it; a
# line other than 0 before that keeps Ray's logs in RFT_RUN_DIR/ray_logs.
set -Eeuo pipefail

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck disable=SC2034,SC2153  # both are read by launch/ray.sh; RFT_RUN_DIR is meant
DRY_RUN=0 RUN_DIR=$RFT_RUN_DIR
unset RAY_ADDRESS             # a cluster that runs elsewhere would not have our environment

die() {
    printf 'error: %s\n  found:  %s\n  wanted: %s\n  repair: %s\n' "$@" >&2
    exit 1
}

# shellcheck source=launch/ray.sh
source "$ROOT/launch/ray.sh"

status=0
trap 'set +e; stop_ray "$status"; end_orphans' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
start_ray "${1:-}"
wait_for_ray
printf '%s\n' "$RAY_ADDRESS"
read -r status || true # until the caller closes the pipe
