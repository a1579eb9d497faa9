#!/usr/bin/env bash
# Print the learning-rate schedule of a run before it starts; exit 1 where it stays below 30% of its target or destroys
# any model; under a second.
#
#   POOL=$(wc -l < .cache/rft/data/sft_rl_pool_400.jsonl) NS=8 TBS=16 EP=1 WARMUP=0.05 LR=5e-7 bash preflight_lr.sh
#
# POOL prompts, NS samples a prompt, TBS samples an optimizer step, EP episodes, WARMUP ratio, LR target. Optional: RBS
# prompts a rollout, to print rollout steps too; SCHEDULER as --lr_scheduler. docs/preflight.md has the arithmetic.
set -Eeuo pipefail

root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=launch/usage.sh
source "$root/launch/usage.sh" # --help
python="$root/.venv/bin/python"
[[ -x $python ]] || python=python3
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m rft.runs.lr_schedule
