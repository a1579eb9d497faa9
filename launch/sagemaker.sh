#!/usr/bin/env bash
# Runs as training jobs of AWS SageMaker: the commit that is checked out, in a container with the patched stack.
#
#   bash launch/sagemaker.sh submit LAUNCHER [OPENRLHF OPTION …] [--build] [--push] [--job-name NAME] [--spot] [--wait]
#                 [--instance-count N]         machines, each a node of the run's Ray
#   bash launch/sagemaker.sh submit --local [--gpus 0,1] LAUNCHER [OPTION …]    here, by docker, without AWS
#   bash launch/sagemaker.sh status JOB        what has become of it
#   bash launch/sagemaker.sh logs JOB          its last lines; --lines N
#   bash launch/sagemaker.sh stop JOB          it saves, then ends
#   bash launch/sagemaker.sh resume JOB        one more job for a run whose job was stopped or has failed
#   bash launch/sagemaker.sh list              the jobs of docs/job_log.md
#
# SAGEMAKER_ROLE, SAGEMAKER_BUCKET, SAGEMAKER_REPOSITORY (default rft), AWS's own variables. docs/sagemaker.md
set -Eeuo pipefail

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source=launch/usage.sh
source "$ROOT/launch/usage.sh" "${1:-}" # --help behind a launcher is the launcher's
PYTHON="$ROOT/.venv/bin/python"
[[ -x $PYTHON ]] || die "no environment" "no $PYTHON" "the packages of one of the stacks" "make setup"
exec "$PYTHON" -m rft.sagemaker "$@"
