# shellcheck shell=bash disable=SC2034  # read by presets and launchers
# Where a run reads and writes, each place configurable by the environment. Sourced by launch/common.sh.
#
#   CACHE_ROOT                        what can be made again: evaluations, and below it by default
#   DATA_ROOT, MODEL_ROOT             problem files (docs/data.md), checkpoints
#   OUTPUT_ROOT, CKPT_ROOT            a folder <launcher>/<run> of the adapter, of the checkpoints; default: the run's
#   METRICS_LOG_DIR, SAMPLES_LOG_DIR  as the patches read them; default: the run directory, and samples in it

# absolute PATH: as seen from anywhere, since Ray's workers run in other folders.
absolute() {
    if [[ $1 == /* ]]; then printf '%s' "$1"; else printf '%s' "$PWD/$1"; fi
}

RUN_DIR=$(absolute "${RUN_DIR:-$ROOT/runs/$EXP_NAME/$(date -u +%Y%m%dT%H%M%SZ)}")
CACHE_ROOT=$(absolute "${CACHE_ROOT:-$ROOT/.cache/rft}")
DATA_ROOT=$(absolute "${DATA_ROOT:-$CACHE_ROOT/data}")
MODEL_ROOT=$(absolute "${MODEL_ROOT:-$CACHE_ROOT/models}")
METRICS_LOG_DIR=$(absolute "${METRICS_LOG_DIR:-$RUN_DIR}")
SAMPLES_LOG_DIR=$(absolute "${SAMPLES_LOG_DIR:-$RUN_DIR/samples}")

# of_this_run ROOT: this run's folder below a root that many runs share; the run directory where there is no root.
of_this_run() {
    if [[ -n $1 ]]; then absolute "$1/$EXP_NAME/${RUN_DIR##*/}"; else printf '%s' "$RUN_DIR"; fi
}

ADAPTER=$(of_this_run "${OUTPUT_ROOT:-}")/adapter
CHECKPOINTS=$(of_this_run "${CKPT_ROOT:-}")/checkpoints

# require_free_places: a run owns what it writes, also where that is not in its directory.
require_free_places() {
    local place
    for place in "$ADAPTER" "$CHECKPOINTS"; do
        [[ ! -e $place ]] || die "another run has written there" "$place" "a place of this run's own" \
            "choose another RUN_DIR, whose last folder names the run below OUTPUT_ROOT and CKPT_ROOT"
    done
}

# link_places: from the run directory to what is kept elsewhere, so that every reader finds it without the environment.
link_places() {
    local name
    link_place "$ADAPTER" adapter
    link_place "$CHECKPOINTS" checkpoints
    link_place "$SAMPLES_LOG_DIR" samples
    for name in training_metrics.jsonl eval_metrics.jsonl spike_log.jsonl decisions.jsonl; do
        link_place "$METRICS_LOG_DIR/$name" "$name"
    done
}

link_place() {
    [[ $1 == "$RUN_DIR/$2" ]] || ln -s -- "$1" "$RUN_DIR/$2"
}
