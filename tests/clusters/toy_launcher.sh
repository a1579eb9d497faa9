#!/usr/bin/env bash
# A launcher that trains nothing: a step each half second, saved in RUN_DIR/steps. SIGUSR1 saves and stops it with status 11,
# as it does launch/train_*.sh; launch/resume.sh goes on with it.
#
#   bash toy_launcher.sh [--steps N] [--fail STATUS] [--late] [--look]
#
# --late: too late to stop, so it goes on to its end. --look: tell what it sees of its cluster.
set -Eeuo pipefail
wanted=6 fail=0 late=0 look=0 options=("$@")
while (($#)); do
    case $1 in
    --steps) wanted=$2 && shift 2 ;;
    --late) late=1 && shift ;;
    --look) look=1 && shift ;;
    --fail) fail=$2 && shift 2 ;;
    *) shift ;; # --load_checkpoint
    esac
done
CHECKOUT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
PYTHONPATH=$CHECKOUT "$CHECKOUT/.venv/bin/python" -B -m rft.runs.launched "$RUN_DIR" "$0" "${options[@]}"
((late)) || trap 'echo "saved after $(<"$RUN_DIR/steps") steps"; exit 11' USR1
((late == 0)) || trap 'echo "asked to stop"' USR1
trap 'echo "ended after $(<"$RUN_DIR/steps") steps"; exit 143' TERM
: >>"$RUN_DIR/phases.jsonl" # as each run has
[[ -e $RUN_DIR/steps ]] || echo 0 >"$RUN_DIR/steps"
echo "launched on $(hostname) with SEED=${SEED:-} RAY_ADDRESS=${RAY_ADDRESS:-} RETRIEVER_URL=${RETRIEVER_URL:-}"
((look == 0)) || "$CHECKOUT/.venv/bin/python" "$CHECKOUT/tests/clusters/look_around.py"
((fail == 0)) || exit "$fail"
while (($(<"$RUN_DIR/steps") < wanted)); do
    sleep 0.5 &
    wait "$!" || true # a signal
    echo $(($(<"$RUN_DIR/steps") + 1)) >"$RUN_DIR/steps"
done
echo '{}' >"$RUN_DIR/result.json"
