#!/usr/bin/env bash
# Resume a run with one command: with the launcher, the environment and the options of its last start.
#
#   bash launch/resume.sh RUN [OPENRLHF OPTION …]        RAY_ADDRESS=… PREFLIGHT=… DRY_RUN=1 ALLOW_CHANGED=1
#
# RUN is a run's directory, or a launcher's folder (runs/train_grpo_20b), whose newest run is taken. Training goes on
# from the last complete checkpoint; without one it begins anew in the same directory, which keeps what was there in
# start_1. A finished run is left as it is. Options after RUN come last and win, and stay for the next resume.
#
# Where anything else is not as it was at the last start (an environment variable, the launcher's command, the commit,
# packages, model or data), nothing starts, and the difference is named. ALLOW_CHANGED=1 goes on with what is here now.
set -Eeuo pipefail

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source=launch/usage.sh
source "$ROOT/launch/usage.sh"
# shellcheck source=launch/setup.sh
source "$ROOT/launch/setup.sh"
flag DRY_RUN 0
flag ALLOW_CHANGED 0
PYTHON="$ROOT/.venv/bin/python"
"$PYTHON" -c '' 2>/dev/null || PYTHON=$(find_python) # the launcher repairs .venv
PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" exec "$PYTHON" -B -m rft.runs.resume "$@"
