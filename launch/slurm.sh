#!/usr/bin/env bash
# Runs as jobs of Slurm: any launcher on one or several nodes, saved before the time limit and continued by the next job.
# From a login node whose disk the compute nodes share; launcher and variables are those of a run without Slurm.
#
#   bash launch/slurm.sh submit CLUSTER LAUNCHER [OPENRLHF OPTION …]     RUN_DIR=runs/… SEED=… NODES=…
#   bash launch/slurm.sh submit --dry-run CLUSTER LAUNCHER [OPTION …]    print the job script, do nothing
#   bash launch/slurm.sh smoke [--dry-run] CLUSTER     a job of minutes: may a run begin there? go or no-go, with repairs
#   bash launch/slurm.sh status RUN                    its jobs, where they run, how they ended
#   bash launch/slurm.sh logs RUN [-f]                 the newest job's output; -f follows it
#   bash launch/slurm.sh cancel RUN [--now]            save, then end; --now ends without saving. No job follows
#   bash launch/slurm.sh resume RUN                    one more job for a run that has not ended
#
# CLUSTER: gh200, h100, 3node_retriever (launch/clusters/slurm_*.env; launch/slurm/preset.sh lists what may be set), or a
# file NAME.env of your own. RUN: a run's directory. docs/slurm.md
set -Eeuo pipefail

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source=launch/usage.sh
source "$ROOT/launch/usage.sh" "${1:-}" # --help behind a launcher is the launcher's
DRY_RUN=${DRY_RUN:-0}
# shellcheck source=launch/stack.sh
source "$ROOT/launch/stack.sh"
# shellcheck source=launch/setup.sh
source "$ROOT/launch/setup.sh"
# shellcheck source=launch/slurm/preset.sh
source "$ROOT/launch/slurm/preset.sh"
# shellcheck source=launch/slurm/script.sh
source "$ROOT/launch/slurm/script.sh"
# shellcheck source=launch/slurm/actions.sh
source "$ROOT/launch/slurm/actions.sh"

action=${1:-}
(($# == 0)) || shift
if [[ ${1:-} == --dry-run ]]; then
    DRY_RUN=1
    shift
fi
flag DRY_RUN 0
case $action in
submit) submit "$@" ;;
smoke) smoke "$@" ;;
status | logs | cancel | resume) "${action}_run" "$@" ;;
*)
    die "no such action" "${action:-none}" "submit, smoke, status, logs, cancel or resume" "bash launch/slurm.sh --help"
    ;;
esac
