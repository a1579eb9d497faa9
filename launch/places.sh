# shellcheck shell=bash disable=SC2034  # read by presets and launchers
# Where a run reads and writes, each place configurable by the environment. Sourced by launch/common.sh.
#
#   CACHE_ROOT                        what can be made again: evaluations, and below it by default
#   DATA_ROOT, MODEL_ROOT             problem files (docs/data.md), checkpoints
#   OUTPUT_ROOT, CKPT_ROOT            a folder <launcher>/<run> of the adapter, of the checkpoints; default: the run's
#   METRICS_LOG_DIR, SAMPLES_LOG_DIR  as the patches read them; default: the run directory, and samples in it
#   SPIKE_LOG_PATH                    likewise, spikes/ beside it; default: spike_log.jsonl in METRICS_LOG_DIR

# absolute PATH: as seen from anywhere, since Ray's workers run in other folders, and spelt in one way, since the run
# directory's last folder names the run elsewhere and its path marks the run's processes. Links stay as they are.
absolute() {
    realpath -ms -- "$1"
}

RUN_DIR=$(absolute "${RUN_DIR:-$ROOT/runs/$EXP_NAME/$(date -u +%Y%m%dT%H%M%SZ)}")
CACHE_ROOT=$(absolute "${CACHE_ROOT:-$ROOT/.cache/rft}")
DATA_ROOT=$(absolute "${DATA_ROOT:-$CACHE_ROOT/data}")
MODEL_ROOT=$(absolute "${MODEL_ROOT:-$CACHE_ROOT/models}")
METRICS_LOG_DIR=$(absolute "${METRICS_LOG_DIR:-$RUN_DIR}")
SAMPLES_LOG_DIR=$(absolute "${SAMPLES_LOG_DIR:-$RUN_DIR/samples}")
SPIKE_LOG_PATH=$(absolute "${SPIKE_LOG_PATH:-$METRICS_LOG_DIR/spike_log.jsonl}")

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
        [[ ! -e $place ]] || die "another run has written there" "$place" "a path of this run's own" \
            "choose another RUN_DIR, whose last folder names the run below OUTPUT_ROOT and CKPT_ROOT"
    done
    [[ ! -s $METRICS_LOG_DIR/training_metrics.jsonl ]] || die "another run has logged there" \
        "$METRICS_LOG_DIR/training_metrics.jsonl" "one file per run" "unset METRICS_LOG_DIR, or name a new folder"
    [[ -z "$(ls -A -- "$SAMPLES_LOG_DIR" 2>/dev/null)" ]] || die "another run has written there" \
        "SAMPLES_LOG_DIR=$SAMPLES_LOG_DIR, not empty" "a new or empty folder" "unset SAMPLES_LOG_DIR, or name another"
}

# each_place FUNCTION: call it with every place that may be elsewhere and its name in the run directory.
each_place() {
    local name
    "$1" "$ADAPTER" adapter
    "$1" "$CHECKPOINTS" checkpoints
    "$1" "$SAMPLES_LOG_DIR" samples
    "$1" "$SPIKE_LOG_PATH" spike_log.jsonl
    "$1" "${SPIKE_LOG_PATH%/*}/spikes" spikes
    for name in {training,eval,discarded,discarded_eval}_metrics.jsonl {,discarded_}decisions.jsonl; do
        "$1" "$METRICS_LOG_DIR/$name" "$name"
    done
}

# name_of_place PLACE NAME: the name in the run directory.
name_of_place() {
    printf '%s\n' "$2"
}

# link_place PLACE NAME: from the run directory to what is kept elsewhere, so that every reader finds it without the
# environment.
link_place() {
    [[ $1 == "$RUN_DIR/$2" ]] || ln -s -- "$1" "$RUN_DIR/$2"
}

# require_same_place PLACE NAME: a resumed run writes where it wrote before; without the variables its links lead there.
require_same_place() {
    [[ $1 == "$RUN_DIR/$2" || $1 == "$(readlink -- "$RUN_DIR/$2")" ]] ||
        die "the run was started with other paths" "$2 at $1" "$(readlink -m -- "$RUN_DIR/$2")" \
            "unset OUTPUT_ROOT, CKPT_ROOT, METRICS_LOG_DIR, SAMPLES_LOG_DIR and SPIKE_LOG_PATH, or set them as at first"
}
